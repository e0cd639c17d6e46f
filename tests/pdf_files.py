"""PDF files for tests."""

from __future__ import annotations

from collections.abc import Sequence


def pdf(pages: Sequence[str], title: str = "") -> bytes:
    """A PDF with one line of text a page; a page without text is empty."""
    kids = " ".join(f"{4 + 2 * number} 0 R" for number in range(len(pages)))
    objects = [
        "<< /Type /Catalog /Pages 2 0 R >>",
        f"<< /Type /Pages /Kids [{kids}] /Count {len(pages)} >>",
        "<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>",
    ]
    for number, text in enumerate(pages):
        content = f"BT /F1 12 Tf 72 720 Td ({text}) Tj ET" if text else ""
        objects += [
            f"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 612 792] /Contents {5 + 2 * number} 0 R "
            "/Resources << /Font << /F1 3 0 R >> >> >>",
            f"<< /Length {len(content)} >>\nstream\n{content}\nendstream",
        ]
    objects.append(f"<< /Title ({title}) >>")
    body, places = "%PDF-1.4\n", []
    for number, text in enumerate(objects, 1):
        places.append(len(body))
        body += f"{number} 0 obj\n{text}\nendobj\n"
    table = "".join(f"{place:010d} 00000 n \n" for place in places)
    start, size = len(body), len(objects) + 1
    body += f"xref\n0 {size}\n0000000000 65535 f \n{table}"
    body += f"trailer\n<< /Size {size} /Root 1 0 R /Info {size - 1} 0 R >>\nstartxref\n{start}\n%%EOF\n"
    return body.encode("latin-1")
