"""The repository map shows what matters first and keeps to its budget."""

import pytest

from libs.repository import Snapshot, detect, rank_files, repository_map
from libs.repository.symbols import symbols_of, words_of

FILES = {
    "README.md": "# Calc\nA calculator.\n",
    "AGENTS.md": "Keep functions small.\n- Test: `make check`\n",
    "calc/parser.py": "class TokenParser:\n    def inner(self): ...\n\nasync def parse_price(text):\n    return text\n",
    "calc/printer.py": "def show(value):\n    print(value)\n",
    "calc/折扣.py": "# 计算会员折扣\ndef discount(): ...\n",
    "tests/test_parser.py": "def test_price(): ...\n",
    "data/prices.csv": "1,2\n",
}
TREE = Snapshot(list(FILES), FILES)


def test_map_holds_languages_commands_readme_agents_and_symbols() -> None:
    text = repository_map(TREE, "parsePrice fails", project=detect(TREE))
    for part in (
        "Python (4)",
        "`make check`",
        "A calculator.",
        "Keep functions small.",
        "calc/parser.py: TokenParser, parse_price",
        "data/prices.csv",
    ):
        assert part in text


def test_sources_are_listed_before_tests_and_data() -> None:
    listing = repository_map(TREE).split("## Tracked files\n")[1]
    assert listing.index("calc/printer.py") < listing.index("tests/test_parser.py") < listing.index("data/prices.csv")


def test_files_are_ranked_by_words_of_the_issue() -> None:
    assert rank_files(TREE, "`parsePrice` returns None")[0] == "calc/parser.py"
    assert rank_files(TREE, "会员的折扣算错了")[0] == "calc/折扣.py"


def test_map_without_tests_says_so() -> None:
    tree = Snapshot(["a.py"], {"a.py": "x = 1\n"})
    assert "no tests found" in repository_map(tree, project=detect(tree))


@pytest.mark.parametrize("budget", [0, 50, 400, 2000, 10_000])
def test_map_never_exceeds_its_budget(budget: int) -> None:
    files = FILES | {f"pkg/m{number}.py": f"def function_{number}(): ...\n" for number in range(400)} | {"AGENTS.md": "rule\n" * 9000}
    assert len(repository_map(Snapshot(list(files), files), "function", budget)) <= budget


def test_what_is_cut_is_said_with_where_the_rest_is() -> None:
    files = FILES | {"AGENTS.md": "a rule to keep\n" * 9000}
    text = repository_map(Snapshot(list(files), files), budget_characters=4000)
    assert "characters left out; see the rest with `read`" in text


def test_large_tree_is_folded_by_folder() -> None:
    paths = [f"pkg/deep/m{number}.py" for number in range(5000)] + ["setup.py"]
    text = repository_map(Snapshot(paths, {}))
    assert "pkg/deep/ (5000 files)" in text
    assert "5001 files" in text


@pytest.mark.parametrize(
    ("path", "source", "names"),
    [
        (
            "a.js",
            "export default class A {}\nexport const b = 1;\nasync function c() {}\nexports.d = 2;\n  function no() {}\n",
            ("A", "b", "c", "d"),
        ),
        ("a.ts", "export interface I {}\nexport type T = 1;\n", ("I", "T")),
        ("a.go", "func (s *S) Run() {}\nfunc Main() {}\ntype S struct{}\n", ("Run", "Main", "S")),
        ("a.rs", "pub fn add() {}\npub(crate) struct P;\nenum E {}\n", ("add", "P", "E")),
        ("A.java", "public final class A {\n}\ninterface B {}\n", ("A", "B")),
        ("a.txt", "def nothing(): ...", ()),
    ],
)
def test_top_level_names(path: str, source: str, names: tuple[str, ...]) -> None:
    assert symbols_of(path, source) == names


def test_words_split_identifiers_and_chinese() -> None:
    assert {"parse", "http", "response", "parsehttpresponse"} <= words_of("parseHTTPResponse")
    assert {"snake", "case", "折扣", "会员"} <= words_of("snake_case 会员折扣")
