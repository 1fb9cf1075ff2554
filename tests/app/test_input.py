"""What a person types: given back, recalled, completed, held, and the keys it is done with."""

import json
import signal
from pathlib import Path

import pytest

from tests.app.terminal import Open

pytestmark = pytest.mark.slow  # each opens the program in a terminal and waits as a person would

UP, DOWN, ESC = "\x1b[A", "\x1b[B", "\x1b"
LINES = "".join(f"pasted line {number}\n" for number in range(120))


def pasted(text: str) -> str:
    return f"\x1b[200~{text}\x1b[201~"


def prompts_of(folder: Path) -> list[str]:
    """What was typed, as the history's file has it, the newest last."""
    return [json.loads(line)["text"] for line in (folder / "home/state/history").read_text().splitlines()]


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    "refusal", [{"error": {"kind": "context_overflow"}}, {"error": {"kind": "auth"}}, {"stop_reason": "refusal"}]
)
@pytest.mark.parametrize("columns", [40, 120])
def test_a_withdrawn_prompt_is_back_in_the_input(open_terminal: Open, refusal: dict[str, object], columns: int) -> None:
    terminal = open_terminal([refusal, {"text": "now I see it"}], columns=columns)
    terminal.see("script.jsonl")
    terminal.type(f"look at @a.py and {pasted(LINES)} please")
    terminal.see("#1")
    terminal.see("please")
    terminal.type("\r")
    terminal.see("✗")
    terminal.settle()
    terminal.see(r"(?s)✗.*\n› look at @a.py and \[Pasted #1[^›]* please\n")
    terminal.type("\r")
    terminal.see("now I see it")


def test_a_prompt_withdrawn_while_another_is_typed_waits_in_the_history(open_terminal: Open) -> None:
    terminal = open_terminal([{"text": "hm " * 20, "delay_ms": 60, "chunk": 2, "error": {"kind": "context_overflow"}}])
    terminal.see("script.jsonl")
    terminal.type("the first thought\r")
    terminal.see("hm")
    terminal.type("another")
    terminal.see("Up in the empty input brings it back")
    terminal.type(" one")
    terminal.see(r"\n› another one\n")
    assert "Up in the empty input" in terminal.settle(0.2), "a person who types on reads it as well"
    terminal.rest()
    terminal.type("\x03" + UP + UP)
    terminal.see(r"\n› the first thought\n")


def test_a_withdrawn_custom_command_is_in_the_input_as_typed(open_terminal: Open, tmp_path: Path) -> None:
    commands = tmp_path / "home" / "commands"
    commands.mkdir(parents=True)
    (commands / "explain.md").write_text("Explain at length: $ARGUMENTS\n")
    terminal = open_terminal([{"error": {"kind": "context_overflow"}}])
    terminal.see("script.jsonl")
    terminal.type("/explain the parser\r")
    terminal.see(r"(?s)✗ scripted context_overflow.*\n› /explain the parser\n")


def test_up_shows_a_paste_as_it_was_typed_and_sends_the_whole(open_terminal: Open, tmp_path: Path) -> None:
    first = open_terminal([{"text": "one"}, {"text": "two"}])
    first.see("script.jsonl")
    first.type(f"see {pasted(LINES)} there")
    first.see(r"› see \[Pasted #1 \+120 lines\] there")
    first.type("\r")
    first.see("\none\n")
    first.rest()
    first.type(UP)
    first.see(r"(?s)\none\n.*› see \[Pasted #1 \+120 lines\] there")
    first.type("\r")
    first.see("\ntwo\n")
    first.leave()
    assert first.exit_code() == 0
    second = open_terminal([{"text": "three"}])
    second.see("script.jsonl")
    second.type(UP)
    second.see(r"› see \[Pasted #1 \+120 lines\] there")
    second.type("\x7f" * 6 + " again\r")
    second.see("three")
    second.leave()
    assert second.exit_code() == 0
    assert prompts_of(tmp_path)[-1] == "see [Pasted #1 +120 lines] again"
    stored = b"".join(file.read_bytes() for file in (tmp_path / "home/state").rglob("*.db*"))
    assert stored.count(b"pasted line 119") >= 3


def test_up_begins_at_the_newest_wherever_it_was_before(open_terminal: Open) -> None:
    terminal = open_terminal([{"text": f"answer {number}"} for number in range(3)])
    terminal.see("script.jsonl")
    for number, word in enumerate(("oldest", "older", "newest")):
        terminal.type(f"{word}\r")
        terminal.see(f"\nanswer {number}\n")
    terminal.type("never sent")
    terminal.see("› never sent")
    terminal.rest()
    terminal.type("\x03" + UP)
    terminal.see(r"\n› never sent\n")
    terminal.type(UP + UP)
    terminal.see(r"answer 2(?s:.*)\n› older\n")
    terminal.type("\x03")  # in the middle of the history
    terminal.settle()
    terminal.type(UP + UP)
    terminal.see(r"answer 2(?s:.*)\n› never sent\n")
    terminal.type(DOWN * 9)
    terminal.settle()
    terminal.type("half a thought")
    terminal.type(UP + UP + DOWN + DOWN)
    terminal.see(r"answer 2(?s:.*)\n› half a thought\n")


def test_a_message_withdrawn_from_the_queue_has_its_paste_folded(open_terminal: Open) -> None:
    terminal = open_terminal([{"text": "word " * 400, "delay_ms": 20, "chunk": 5}])
    terminal.see("script.jsonl")
    terminal.type("go\r")
    terminal.see("word word")
    terminal.type(f"then {pasted(LINES)}")
    terminal.see("#1")
    terminal.type("\t")
    terminal.see("queued: then pasted line 0")
    terminal.type(UP)
    terminal.see(r"\n› then \[Pasted #1 \+120 lines\]\n")


@pytest.mark.sampled(1)
@pytest.mark.parametrize("columns", [40, 80, 120])
def test_the_card_of_keys_leaves_no_trace(open_terminal: Open, tmp_path: Path, columns: int) -> None:
    terminal = open_terminal([{"text": "the answer"}], columns=columns)
    terminal.see("script.jsonl")
    before = terminal.settle(0.6)
    for key in ("\x7f", "\x03", "\r", ESC):
        terminal.type("?")
        terminal.see("Shift-Tab")
        terminal.settle(0.6)
        terminal.type(key)
        assert terminal.settle(0.6) == before, repr(key)
        assert terminal.screen.cursor.x == 2
    terminal.type("\x1f")  # undo
    assert terminal.settle() == before
    terminal.type("?? what\r")
    terminal.see("the answer")
    terminal.type(UP + UP)
    terminal.see(r"(?s)the answer.*\n› \?\? what\n")
    assert prompts_of(tmp_path) == ["?? what"]


def test_a_question_mark_is_not_a_draft(open_terminal: Open) -> None:
    first = open_terminal([{"text": "x"}])
    first.see("script.jsonl")
    first.type("?")
    first.see("Shift-Tab")
    first.settle(0.8)
    first.kill(signal.SIGKILL)
    assert first.exit_code() != 0
    second = open_terminal([{"text": "x"}])
    second.see("script.jsonl")
    assert "draft" not in second.settle(0.6)
    assert "Shift-Tab" not in second.text()


@pytest.mark.parametrize("columns", [40, 80])
def test_vi_shows_its_mode_in_the_status_line(open_terminal: Open, columns: int) -> None:
    replies = [{"text": "answered"}, {"text": "word " * 400, "delay_ms": 20, "chunk": 5}]
    terminal = open_terminal(replies, columns=columns, AGENTCLI_TERMINAL_EDITING_MODE="vi")
    terminal.see(r"\nINSERT · ask before edits")
    terminal.type(ESC)
    terminal.see(r"\nNORMAL · ask before edits")
    terminal.type("ione two")
    terminal.see(r"› one two\nINSERT · ")
    terminal.type(ESC)
    terminal.see(r"› one two\nNORMAL · ")
    terminal.type("vb")
    terminal.see("\nVISUAL · ")
    terminal.type("d\r")
    terminal.see("answered")
    terminal.see("\nINSERT · ")
    terminal.type("go\r")
    terminal.see("word word")
    terminal.type(ESC)
    terminal.see("Interrupted")
    assert "INSERT" in terminal.settle()


@pytest.mark.full
def test_a_hint_goes_with_what_it_speaks_of(open_terminal: Open) -> None:
    first = open_terminal([{"text": "x"}])
    first.see("script.jsonl")
    first.type("half a thought")
    first.settle(1.0)
    first.kill(signal.SIGKILL)
    assert first.exit_code() != 0
    second = open_terminal([{"text": "x"}])
    second.see("Your draft is back")
    second.type("!")
    second.see("half a thought!")
    assert "draft" not in second.settle(0.2)
    second.type(ESC)
    second.see("Press Esc again to clear")
    second.type("x")
    assert "Esc again" not in second.settle(0.2)
    second.type(ESC)
    second.see("Press Esc again to clear")
    second.settle(1.2)
    assert "Esc again" not in second.text()
    assert second.text().count("half a thought!x") == 1
    second.type("\x03\x03")
    second.see("Press Ctrl-C again to leave")
    second.type("y")
    assert "again" not in second.settle(0.2)


def test_an_impatient_second_esc_does_not_rewind(open_terminal: Open) -> None:
    terminal = open_terminal([{"text": "word " * 400, "delay_ms": 20, "chunk": 5}])
    terminal.see("script.jsonl")
    terminal.type("go\r")
    terminal.see("word word")
    terminal.type(ESC)
    terminal.see("Interrupted")
    terminal.type(ESC)
    assert "Rewind" not in terminal.settle()
    terminal.see("Press Esc again to rewind")


def test_what_is_completed_is_followed_by_a_space(open_terminal: Open) -> None:
    terminal = open_terminal([{"text": "x"}], columns=40)
    terminal.see("script.jsonl")
    terminal.type("@a.p")
    terminal.see("❯ a.py")
    terminal.type("\tand")
    terminal.see("› @a.py and")
    terminal.type("\x03/stat")
    terminal.see("❯ /status")
    terminal.type("\t")
    terminal.see("› /status\n")
    terminal.type("x")
    terminal.see("› /status x\n")


def test_a_space_typed_behind_a_completed_command_leaves_its_arguments_open(open_terminal: Open) -> None:
    terminal = open_terminal([{"text": "x"}])
    terminal.see("script.jsonl")
    terminal.type("/effo")
    terminal.see("❯ /effort")
    terminal.type("\t")
    terminal.see("❯ low")
    terminal.type(" ")
    assert "❯ low" in terminal.settle(0.5)
    terminal.type("hi")
    terminal.see("› /effort  hi\n❯ high")


def test_the_hint_on_a_mode_goes_with_the_mode(open_terminal: Open) -> None:
    terminal = open_terminal([{"text": "x"}])
    terminal.see("ask before edits")
    terminal.type("\x1b[Z" * 4)
    terminal.see("Asks before edits")
    terminal.type("\x1b[Z")
    terminal.see("accept edits")
    assert "Asks before edits" not in terminal.settle(0.2)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("columns", [40, 80, 120])
def test_a_name_of_no_file_is_noticed(open_terminal: Open, columns: int) -> None:
    terminal = open_terminal([{"text": "the answer"}, {"text": "the next one"}], columns=columns)
    terminal.see("script.jsonl")
    terminal.type("explain @aa.py")
    terminal.settle(0.3)
    terminal.type(f"{ESC} please\r")
    screen = terminal.see("the answer")
    assert "› explain @aa.py please Not found: @aa.py. The message was sent unchanged." in " ".join(screen.split())
    terminal.type(f"mail me@example.com about @dataclass in @a.py and {pasted(LINES + '@nmae.py ' * 9)}")
    terminal.see("#1")
    terminal.type("\r")
    terminal.see("the next one")


@pytest.mark.sampled(1)
@pytest.mark.parametrize("columns", [40, 80, 120])
def test_keys_can_be_chosen_and_are_shown(open_terminal: Open, tmp_path: Path, columns: int) -> None:
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "config.toml").write_text(
        "[terminal.keys]\n"
        'send = "a-enter"\nnewline = ["enter", "c-j"]\ninterrupt = "c-k"\nunfold = "f2"\nmode = "f3"\n'
        'stash = []\nredraw = "c-x c-l"\nqueue = "a-q"\n'
    )
    replies = [{"tool_calls": [{"name": "bash", "input": {"command": "seq 100 140"}}]}, {"text": "counted"}]
    replies.append({"text": "word " * 400, "delay_ms": 20, "chunk": 5})  # type: ignore[dict-item]
    terminal = open_terminal(replies, "--permission-mode", "auto", columns=columns)
    terminal.see("script.jsonl")
    terminal.type("?")
    card = terminal.see("show all of the last")
    for key in ("F2 ", "F3 ", "Ctrl-K", "Alt-Enter", "Alt-Q"):
        assert key in card
    for key in ("Ctrl-O", "Shift-Tab", "Ctrl-S", "stash"):
        assert key not in card
    terminal.type(ESC)
    terminal.settle(0.3)
    terminal.type("one\rtwo")
    terminal.see(r"› one\n  two\n")
    terminal.type(f"{ESC}\r")
    terminal.see("counted")
    assert "F2 shows" in terminal.text().replace("\n", "")
    assert "118" not in terminal.text()
    terminal.type("\x0f")  # Ctrl-O means nothing now
    terminal.settle(0.3)
    assert "118" not in terminal.text()
    terminal.type(f"{ESC}OQ")
    terminal.see("118")
    terminal.type(f"go{ESC}\r")
    terminal.see("Ctrl-K to interrupt")
    terminal.see("word word")
    terminal.type(ESC)
    terminal.settle(0.4)
    assert "Interrupted" not in terminal.text()
    terminal.type("\x0b")
    terminal.see("Interrupted")
    terminal.type(f"{ESC}OR")
    terminal.see("ask before edits|plan|accept")


@pytest.mark.parametrize(
    ("term", "colorterm", "code"),
    [
        ("xterm-256color", "truecolor", b"38;2;95;135;255m"),
        ("xterm-256color", "", b"38;5;69m"),
        ("xterm", "", b"34m"),
    ],
)
def test_a_custom_theme(open_terminal: Open, tmp_path: Path, term: str, colorterm: str, code: bytes) -> None:
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "config.toml").write_text(
        '[terminal]\ntheme = "mine"\n[terminal.themes.mine]\nprompt = "#5f87ff"\n[terminal.themes.other]\nblue = 1\n'
    )
    terminal = open_terminal([{"text": "x"}], TERM=term, COLORTERM=colorterm)
    terminal.see("script.jsonl")
    assert code in terminal.written
    terminal.type("/theme other\r")
    terminal.see("Theme other")
    terminal.get(b"\x1b[1;31m")
    terminal.type("/theme mine\r")
    terminal.see("Theme mine")
    terminal.type("/theme nine\r")
    terminal.see("no theme 'nine'")


@pytest.mark.parametrize(
    ("written", "says"),
    [
        ('[terminal.keys]\nstash = "c-o"\n', "line 2: terminal.keys.stash: c-o is already used for unfold"),
        ('[terminal.keys]\n# mine\nstsh = "f2"\n', "line 3: terminal.keys.stsh: unknown setting"),
        ('[terminal.keys]\nstash = ["f2", "ctrl-q"]\n', "line 2: terminal.keys.stash: 'ctrl-q' is not a valid key"),
        ("[terminal.themes.mine]\nblu = 3\n", "line 2: terminal.themes.mine.blu: unknown role"),
        ('[terminal]\ntheme = "mine"\n', "line 2: terminal.theme: unknown theme 'mine'"),
    ],
)
def test_keys_and_themes_that_cannot_be_are_errors_of_the_settings(
    open_terminal: Open, tmp_path: Path, written: str, says: str
) -> None:
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "config.toml").write_text(written)
    terminal = open_terminal([{"text": "x"}], columns=200)
    assert terminal.exit_code() == 2
    assert says in terminal.text().replace("\n", "")


def test_a_list_gets_what_is_typed_right_behind_its_key(open_terminal: Open) -> None:
    terminal = open_terminal([{"text": "one"}, {"text": "two"}])
    terminal.see("script.jsonl")
    for text, answer in (("find the parser", "one"), ("write tests", "two")):
        terminal.type(f"{text}\r")
        terminal.see(f"\n{answer}\n")
    terminal.type("\x12find the pars")
    terminal.see("History find the pars")
    terminal.see("❯ find the parser")
    terminal.type("\r")
    terminal.see(r"two(?s:.*)\n› find the parser\n")


def test_words_for_an_approval_are_text_and_leave_the_prompt_alone(open_terminal: Open, tmp_path: Path) -> None:
    (tmp_path / "shot.png").write_bytes(bytes.fromhex(PNG))
    edit = {"name": "file_edit", "input": {"path": "a.py", "old_string": "hi", "new_string": "hello"}}
    terminal = open_terminal([{"tool_calls": [edit]}, {"text": "as you wish"}, {"text": "next"}])
    terminal.see("script.jsonl")
    terminal.type("change it\r")
    terminal.asked()
    terminal.settle(1.0)
    terminal.type("\t")
    terminal.see(r"\nNo, \w+")
    terminal.type(f"see {pasted(str(tmp_path / 'shot.png'))} {UP}{pasted(LINES)}")
    terminal.see(r"shot\.png\s+\[\s*Past")
    terminal.type("\r")
    screen = terminal.see("as you wish")
    assert "Image" not in screen
    assert "pasted line 119" in screen
    terminal.rest()
    terminal.type(UP)
    terminal.see(r"as you wish(?s:.*)\n› change it\n")


PNG = (
    "89504e470d0a1a0a0000000d4948445200000001000000010802000000907753de0000000c4944415408d763f8cfc0000003010100"
    "c9fe92ef0000000049454e44ae426082"
)


def test_resizing_while_a_long_line_is_typed_keeps_it(open_terminal: Open) -> None:
    words = [f"word{number}" for number in range(60)]
    terminal = open_terminal([{"text": "thanks"}], columns=60)
    terminal.see("script.jsonl")
    for number, word in enumerate(words):
        terminal.type(f"{word} ")
        if number % 6 == 5:
            terminal.resize(40, (80, 40, 120, 50)[number // 6 % 4])
    terminal.see("word59")
    terminal.resize(40, 100)
    terminal.settle()
    rows = terminal.text().split("\n")
    first = max(number for number, row in enumerate(rows) if row.startswith("› word0 "))
    joined = "".join(row[2:].ljust(98) if len(row) > 97 else row[2:] for row in rows[first:-1])
    assert " ".join(words) in joined
    terminal.type("\r")
    terminal.see("thanks")
