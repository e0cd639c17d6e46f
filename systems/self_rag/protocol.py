"""Self-RAG (Asai et al. 2023, arXiv 2310.11511): passages side by side, the best segment by reflection tokens kept.

The gate weighs whether to retrieve. Below each passage the policy writes one segment: whether the passage is relevant,
a sentence, whether the passage supports it, and then the utility of the answer or that more evidence is needed. The
probabilities of these tokens score the segment; the best ones are continued, level by level.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import chain
from pathlib import Path

from common.errors import ConfigError
from envs.protocols.step_a_turn import RendersAnew, turn_step
from envs.requests import Act, Control, Data, Done, Piece, Quoted, Request, forced_request
from envs.text import Codec
from envs.types import Action, Episode, Hit, Move, MoveKind, Question, Step, Turn
from systems.self_rag.scores import Weights
from systems.self_rag.segment_tree import ALONE, SIZES, Ended, Node, Rules, Search, SegmentTree, Weigh, Write
from systems.self_rag.tokens import OWN, PUBLISHED, Group, read_segment

AGENT = "policy"
_KEPT = 4096  # segments that were read: a tree is read anew at each of its turns


class SelfRAG(RendersAnew):
    """Self-RAG, short form (`depth` 1, one segment is the answer) or long form.

    A context is the question, the segments of a path with their tokens, and one passage. Its sampler must give
    log-probs of tokens that it did not sample (`Sampler.score`), unless `written`.

    Args:
        tokenizer: folder or hub id, with the reflection tokens as tokens or without.
        instruction: what the user message says before the question; of published models the task's own line.
        threshold: the gate retrieves above it; below 0 always, from 1 on never.
        depth: levels of segments.
        beam: paths that are kept at each level.
        passages: how many of a retrieval are used, each for a segment; None: all.
        weights: of a segment's score.
        requery: each later level searches with the segment before it, a variant: the paper shows the passages of the
            question at every level.
        whole: the answer is all segments of the path; else the last one.
        written: the tokens count as they were written, nothing is weighed, and any sampler will do: for teachers.
        official: as the released code, whose gate divides log-probs and whose long form leaves the utility out.
        published: tokens and prompt of the authors' checkpoints (`selfrag/selfrag_llama2_7b`).
        segment_tokens: limit of one segment.

    Raises:
        ConfigError: a number is below 1.
    """

    moves: tuple[MoveKind, ...] = ("conclude",)

    def __init__(
        self,
        tokenizer: Path | str,
        *,
        instruction: str = "",
        threshold: float = 0.2,
        depth: int = 1,
        beam: int = 2,
        passages: int | None = None,
        weights: Weights | None = None,
        requery: bool = False,
        whole: bool = False,
        written: bool = False,
        official: bool = False,
        published: bool = False,
        segment_tokens: int = 100,
    ) -> None:
        if min(depth, beam, segment_tokens, 1 if passages is None else passages) < 1:
            settings = f"depth {depth}, beam {beam}, passages {passages}, segment_tokens {segment_tokens}"
            raise ConfigError(f"{settings}: each must be at least 1")
        self.tokens = PUBLISHED if published else OWN
        self.codec = Codec(tokenizer, self.tokens.all)
        self.instruction, self.published, self.segment_tokens = instruction, published, segment_tokens
        self.whole, self.written, self.depth = whole, written, depth
        read = lru_cache(_KEPT)(lambda ids, text: read_segment(self.codec, self.tokens, ids, text))
        self.rules = Rules(
            depth=depth,
            beam=beam,
            passages=passages,
            threshold=threshold,
            requery=requery,
            written=written,
            weights=weights or Weights(),
            official=official,
            read=lambda turn: read(turn.action_ids, turn.text),
        )
        if depth > 1:
            self.moves = ("read", "conclude")

    def tree(self, episode: Episode) -> SegmentTree:
        """The tree of an episode so far."""
        return self.rules.grown(episode.question.text, episode.turns)

    def next(self, episode: Episode) -> Request | Act | Done:
        tree = self.tree(episode)
        match tree.due:
            case Search(query):
                return Act(episode, Action("query", query))
            case Weigh(asked):
                alternatives = (self._alternatives(episode.question, *one) for one in asked)
                return Act(episode, Action("weigh", ""), tuple(chain.from_iterable(alternatives)))
            case Write(node):
                stop = self.tokens.stops if node.parent else self.tokens.retrieval
                context = self._context(episode.question, node)
                return Request(episode, (), stop, AGENT, context, max_tokens=self.segment_tokens)
            case Ended():
                return Done("answered" if tree.best.text else "malformed")

    def _alternatives(self, question: Question, node: Node, group: Group, place: int) -> list[Request]:
        if node.turn is None:
            prefix = self.codec.encode(self._context(question, node))
        else:
            prefix = (node.turn.context_ids or ()) + node.turn.opening_ids + node.turn.action_ids[:place]
        names = getattr(self.tokens, group)[: SIZES[group]]
        return [forced_request(prefix, self.codec.control(name), agent=AGENT) for name in names]

    def _context(self, question: Question, node: Node) -> tuple[Piece, ...]:
        """The question, the path's segments, and the passage that the node stands below."""
        path = [Quoted(one.segment.ids) for one in node.path()[:-1] if one.segment]
        if node.parent is None:
            return self._prompt(question)
        ways, (opening, closing) = self.tokens.retrieval, self.tokens.paragraph
        if node.passage is None:
            return (*self._prompt(question), *path, Control(ways[ALONE]))
        passage = Data(self.tokens.inert(_shown(node.passage)), cuttable=True)
        return (*self._prompt(question), *path, Control(f"{ways[node.way]}{opening}"), passage, Control(closing))

    def _prompt(self, question: Question) -> tuple[Piece, ...]:
        if not self.published:
            user = f"{self.instruction}\n\nQuestion: {{question}}" if self.instruction else "{question}"
            return self.codec.chat(user, question=question.text)
        lead = f"{self.instruction}\n\n## Input:\n\n" if self.instruction else ""
        start = f"{self.codec.tokenizer.bos_token or ''}### Instruction:\n{lead}"
        return Control(start), Data(question.text), Control("\n\n### Response:\n")

    def parse(self, episode: Episode, turn: Turn) -> Action:
        segment, due = self.rules.read(turn), self.tree(episode).due
        if isinstance(due, Write) and due.node.parent is None:
            chosen = segment.written["retrieval"]
            return Action("gate", "" if chosen is None else self.tokens.retrieval[chosen])
        return Action("segment", segment.text)

    def steps(self, episode: Episode) -> tuple[Step, ...]:
        """One a turn that the policy wrote, and one a search; what is not on the best path is thrown away."""
        tree = self.tree(episode)
        path = {node.number: node for node in tree.best.path()}
        answers = tree.best.number if isinstance(tree.due, Ended) or not tree.best.open else None
        nodes = {node.number: node for node in tree.nodes}
        steps: list[Step] = []
        for number, turn in enumerate(episode.turns):
            if turn.action.kind == "query":
                claim = None if self.depth == 1 else ""
                steps.append(Step("query", True, (), query=turn.action.text, claim=claim, hits=turn.hits))
            elif number in nodes:
                node = nodes[number]
                step = turn_step(number, turn, valid=self._well_formed(node), claim=None, dropped=number not in path)
                steps.append(step if number not in path else self._on_path(step, node, final=number == answers))
        return tuple(steps)

    def _on_path(self, step: Step, node: Node, *, final: bool) -> Step:
        claim = None if self.depth == 1 else node.text
        kind = "answer" if final else "segment"
        return Step(kind, step.valid, step.spans, claim=claim, said=step.said, recall=node.passage is None)

    def _well_formed(self, node: Node) -> bool:
        if node.segment is None or node.parent is None:
            return node.segment is not None and node.segment.continues
        written = node.segment.written
        judged = written["relevance"] == 1 or (written["relevance"] == 0 and written["support"] is not None)
        ended = node.segment.continues or written["utility"] is not None
        return bool(node.text) and ended and (judged or node.passage is None)

    def valid(self, episode: Episode) -> bool:
        """Whether the episode ended with an answer, and every segment of its path is in format."""
        kept = [step for step in self.steps(episode) if not step.dropped]
        return episode.status == "answered" and all(step.valid for step in kept)

    def answer(self, episode: Episode) -> str:
        """The last segment of the best path, or all of it where `whole`, without tokens; empty before the end."""
        tree = self.tree(episode)
        if not isinstance(tree.due, Ended):
            return ""
        return " ".join(node.text for node in tree.best.path()) if self.whole else tree.best.text

    def choices(self, episode: Episode) -> Mapping[str, int]:
        """Segments written, levels of the path, how many of these saw no passage, and missing groups of tokens."""
        tree = self.tree(episode)
        written = [node for node in tree.nodes if node.parent]
        missing = [group for node in written for group in node.missing()]
        return {
            "segments": len(written),
            "levels": len(tree.best.path()),
            "unaided": sum(node.passage is None for node in tree.best.path()),
            **{f"missing/{group}": missing.count(group) for group in ("relevance", "support", "utility")},
        }

    def say(self, episode: Episode, moves: Sequence[Move]) -> str:
        due = self.tree(episode).due
        if isinstance(due, Write) and due.node.parent is None:
            return self.tokens.retrieval[0]
        passage = due.node.passage if isinstance(due, Write) else None
        ends = self.tokens.utility[0] if moves[0].kind == "conclude" else self.tokens.retrieval[0]
        return self.segment(moves[0].text, ends, support=0 if passage else None, relevance=0 if passage else None)

    def segment(self, text: str, ends: str, *, relevance: int | None, support: int | None) -> str:
        """A segment with its tokens, as a policy writes it; those that are None are left out."""
        opening = "" if relevance is None else self.tokens.relevance[relevance]
        judged = "" if support is None else self.tokens.support[support]
        return f"{opening} {self.codec.neutralise(text)} {judged}{ends}"


def _shown(hit: Hit) -> str:
    return f"{hit.document.title}\n{hit.document.text}" if hit.shown is None else hit.shown
