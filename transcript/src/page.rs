//! The console blocks of a page as commands, with what they print.

use std::ops::Range;

use crate::{comparison::Comparison, shell::CommandOutput};

/// A command that a page shows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Step {
    /// Line in the file, from 1.
    pub line: usize,
    /// For a shell; can have several lines.
    pub command: String,
    /// Goes on while the next ones run: it ended with ` &`, which `command` has no more.
    pub background: bool,
    /// A block without prompts, which shows no output.
    pub is_script: bool,
    /// The exit code, which a line `? 7` right below the command shows if it isn't 0.
    pub status: i32,
    /// What it prints, with wildcards.
    pub expected: Vec<String>,
    /// Lines of the text, from 0, that show exit code and output.
    pub(crate) output: Range<usize>,
    /// Blanks before each line of its block.
    pub(crate) indent: usize,
}

/// The commands of a text in Markdown: those in blocks of `console`, `sh` and `bash`, unless they are
/// marked `no-test` behind that word.
///
/// Lines that start with `$ ` are commands, and go on in the next line after a `\`. The lines below are what they print,
/// the first of them can be an exit code: `? 7`. A block without any `$ ` is one script.
#[must_use]
pub fn steps(text: &str) -> Vec<Step> {
    let mut steps = Vec::new();
    let mut lines = text.lines().zip(1..);
    while let Some((line, number)) = lines.next() {
        let trimmed = line.trim_start();
        let fence_length = trimmed.chars().take_while(|c| *c == '`').count();
        if fence_length < 3 {
            continue;
        }
        let (fence, info) = trimmed.split_at(fence_length);
        let indent = line.len() - trimmed.len();
        let block: Vec<&str> = lines
            .by_ref()
            .map(|(line, _)| line)
            .take_while(|line| line.trim() != fence)
            .map(|line| without_indent(line, indent))
            .collect();
        let mut words = info.split_whitespace();
        if words
            .next()
            .is_some_and(|word| ["console", "sh", "bash"].contains(&word))
            && words.all(|word| word != "no-test")
        {
            let mut found = block_steps(&block, number + 1);
            for step in &mut found {
                step.indent = indent;
            }
            steps.append(&mut found);
        }
    }
    steps
}

/// Blocks in lists are indented as a whole.
fn without_indent(line: &str, indent: usize) -> &str {
    let blanks = line.len() - line.trim_start_matches(' ').len();
    &line[indent.min(blanks)..]
}

fn block_steps(block: &[&str], first: usize) -> Vec<Step> {
    if !block.iter().any(|line| line.starts_with("$ ")) {
        let script = step(first, &block.join("\n"), 0);
        return Vec::from_iter(script.map(|script| Step {
            is_script: true,
            ..script
        }));
    }
    let mut steps: Vec<Step> = Vec::new();
    let mut lines = block.iter().zip(first..);
    while let Some((line, number)) = lines.next() {
        let Some(command) = line.strip_prefix("$ ") else {
            if let Some(step) = steps.last_mut() {
                step.expected.push((*line).to_owned());
            }
            continue;
        };
        let mut command = command.to_owned();
        let mut last = number;
        while command.ends_with('\\') {
            let Some((more, number)) = lines.next() else {
                break;
            };
            command = format!("{command}\n{more}");
            last = number;
        }
        // Counted from 0, the line below has the number of this one.
        steps.extend(step(number, &command, last));
    }
    for step in &mut steps {
        while step
            .expected
            .last()
            .is_some_and(|line| line.trim().is_empty())
        {
            step.expected.pop();
        }
        step.output.end = step.output.start + step.expected.len();
        let status = step.expected.first().and_then(|line| exit_code(line));
        if let Some(status) = status {
            step.status = status;
            step.expected.remove(0);
        }
    }
    steps
}

fn exit_code(line: &str) -> Option<i32> {
    line.strip_prefix("? ")?.trim().parse().ok()
}

fn step(line: usize, command: &str, output: usize) -> Option<Step> {
    let command = command.trim();
    let background = command.strip_suffix(" &");
    (!command.is_empty()).then(|| Step {
        line,
        command: background.unwrap_or(command).to_owned(),
        background: background.is_some(),
        output: output..output,
        ..Step::default()
    })
}

/// The text with what the commands printed. Wildcards that match stay, as does what is shown below commands in the
/// background.
pub(crate) fn rewritten(text: &str, steps: &[Step], outputs: &[CommandOutput]) -> String {
    let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
    for (at, (step, output)) in steps.iter().zip(outputs).enumerate().rev() {
        if step.background || step.is_script {
            continue;
        }
        let shows_status = steps
            .get(at + 1)
            .is_some_and(|next| next.command == "echo $?");
        let status = (output.status != 0 && !shows_status).then(|| format!("? {}", output.status));
        let comparison = Comparison::new(&step.expected, &output.lines);
        let printed = comparison.lines().map(str::to_owned);
        let new = status.into_iter().chain(printed);
        let indent = " ".repeat(step.indent);
        let new: Vec<String> = new.map(|line| format!("{indent}{line}")).collect();
        lines.splice(step.output.clone(), new);
    }
    lines.join("\n") + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(text: &[&str]) -> Vec<String> {
        text.iter().map(|line| (*line).to_owned()).collect()
    }

    const PAGE: &str = "\
# Title

```console
$ percolator up --ephemeral &
ready in ... s
$ percolator put a \\
    b c

$ percolator get a b
? 7
c ...

```

```rust
$ not(this)
```
";

    #[test]
    fn commands_and_their_output_are_read() {
        assert_eq!(
            steps(PAGE),
            [
                Step {
                    line: 4,
                    command: "percolator up --ephemeral".into(),
                    background: true,
                    expected: lines(&["ready in ... s"]),
                    output: 4..5,
                    ..Step::default()
                },
                Step {
                    line: 6,
                    command: "percolator put a \\\n    b c".into(),
                    output: 7..7,
                    ..Step::default()
                },
                Step {
                    line: 9,
                    command: "percolator get a b".into(),
                    status: 7,
                    expected: lines(&["c ..."]),
                    output: 9..11,
                    ..Step::default()
                },
            ]
        );
    }

    #[test]
    fn a_page_is_rewritten_with_what_was_printed() {
        let output = |text: &[&str], status| CommandOutput {
            lines: lines(text),
            status,
        };
        let outputs = [
            output(&["anything"], 0),
            output(&["done"], 1),
            output(&["c 1", "d"], 0),
        ];
        let changed = rewritten(PAGE, &steps(PAGE), &outputs);
        let expected = PAGE
            .replace("    b c\n", "    b c\n? 1\ndone\n")
            .replace("? 7\nc ...\n", "c ...\nd\n");
        assert_eq!(changed, expected);
    }

    #[test]
    fn a_block_without_prompts_is_a_script() {
        let text = "```sh\ncat > a <<END\nhello\nEND\n```\n";
        let steps = steps(text);
        assert_eq!(steps.len(), 1);
        assert_eq!(steps[0].command, "cat > a <<END\nhello\nEND");
        let output = CommandOutput {
            lines: lines(&["printed"]),
            status: 0,
        };
        assert_eq!(rewritten(text, &steps, &[output]), text);
    }

    #[test]
    fn marked_blocks_are_left_alone() {
        assert_eq!(steps("```console no-test\n$ reboot\n```\n"), []);
        assert_eq!(steps("```sh no-test\nreboot\n```\n"), []);
        assert_eq!(steps("```\n$ reboot\n```\n"), []);
    }

    #[test]
    fn blocks_in_lists_and_longer_fences_are_read() {
        let text = "1. Do\n\n   ```console\n   $ echo a\n   a\n   ```\n\n````console\n$ echo '```'\n````\n";
        let steps = steps(text);
        assert_eq!(steps[0].command, "echo a");
        assert_eq!(steps[0].expected, ["a"]);
        assert_eq!(steps[1].command, "echo '```'");
        let output = |line: &str| CommandOutput {
            lines: lines(&[line]),
            status: 0,
        };
        let changed = rewritten(text, &steps, &[output("b"), output("c")]);
        let expected = text
            .replace("   a\n", "   b\n")
            .replace("'```'\n", "'```'\nc\n");
        assert_eq!(changed, expected);
    }
}
