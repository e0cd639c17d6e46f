"""Documents as people keep them (.md, .txt, .html, .pdf, .docx), read in sections and cut into passages."""
