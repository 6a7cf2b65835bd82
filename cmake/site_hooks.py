"""MkDocs hooks: steps of the site build that the configuration cannot express."""

import posixpath
import re

LINK = re.compile(r"\[([^\]]+)\]\(((?:\.\./)+[^)#\s]+)(#[^)\s]*)?\)")


def on_files(files, config):
    """Excludes the heads of generated pages, which are not separate pages."""
    for file in list(files):
        if file.src_path == "accuracy-head.md":
            files.remove(file)
    return files


def on_page_markdown(markdown, page, config, files):
    """Replaces links to source files, which are not part of the site, with their names."""

    def plain(match):
        text, target = match.group(1), match.group(2)
        place = posixpath.normpath(posixpath.join(posixpath.dirname(page.file.src_path), target))
        if not place.startswith(".."):
            return match.group(0)
        name = place[len("../"):]
        return f"`{name}`" if text in (name, target) else f"{text} (`{name}`)"

    return LINK.sub(plain, markdown)
