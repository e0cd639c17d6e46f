"""A calculator: exact decimal arithmetic, read from a syntax tree and never evaluated as code."""

from __future__ import annotations

import ast
import math
from decimal import Context, Decimal, DivisionByZero, InvalidOperation, Overflow

from common.errors import ToolError

_LONGEST = 200  # characters
_HELP = "write numbers, + - * / ** and parentheses, such as (3 + 4.5) * 2"
_EXACT = Context(prec=50, Emax=49, Emin=-49, traps=[DivisionByZero, InvalidOperation, Overflow])
_SHOWN = Context(prec=12)
_OPERATIONS = {
    ast.Add: _EXACT.add,
    ast.Sub: _EXACT.subtract,
    ast.Mult: _EXACT.multiply,
    ast.Div: _EXACT.divide,
    ast.Pow: _EXACT.power,
    ast.UAdd: _EXACT.plus,
    ast.USub: _EXACT.minus,
}


class Calculator:
    """Adds, subtracts, multiplies, divides and raises to powers, of whole numbers exactly up to 50 digits."""

    def call(self, query: str) -> str:
        """The value of an expression: whole, or rounded to 12 digits.

        Raises:
            ToolError: it is no arithmetic, has no value, or is too large.
        """
        try:
            if len(query) > _LONGEST:
                raise ToolError(f"more than {_LONGEST} characters")
            value = _EXACT.plus(_value(ast.parse(query.strip(), mode="eval").body))
        except Overflow:
            raise ToolError("the result has more than 50 digits") from None
        except (DivisionByZero, InvalidOperation):
            raise ToolError("there is no such number") from None
        except (SyntaxError, ValueError):  # the latter: a null byte, a lone surrogate
            raise ToolError(_HELP) from None
        whole = value == value.to_integral_value(context=_EXACT)
        return str(int(value)) if whole else format(value.normalize(_SHOWN), "f")


def _value(node: ast.expr) -> Decimal:
    match node:
        case ast.Constant(value=int() | float() as number) if not isinstance(number, bool) and math.isfinite(number):
            return Decimal(str(number))
        case ast.BinOp(left, operation, right) if type(operation) in _OPERATIONS:
            return _OPERATIONS[type(operation)](_value(left), _value(right))
        case ast.UnaryOp(operation, operand) if type(operation) in _OPERATIONS:
            return _OPERATIONS[type(operation)](_value(operand))
    raise ToolError(_HELP)
