//! What the README promises: its console blocks as commands with what they print.

/// A command that the README shows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Step {
    /// Line in the file, from 1.
    pub(crate) line: usize,
    /// For a shell; can have several lines.
    pub(crate) command: String,
    /// Goes on while the next ones run: it ended with ` &`, which `command` has no more.
    pub(crate) background: bool,
    /// What it prints, see [`matches()`]; empty where the README doesn't show it.
    pub(crate) expected: Vec<String>,
}

/// The commands of a text in Markdown: those in blocks of `console`, `sh` and `bash`, unless they are
/// marked `no-test` behind that word.
///
/// Lines that start with `$ ` are commands, and go on in the next line after a `\`; the lines below are
/// what they print. A block of `sh` without any `$ ` is one script.
pub(crate) fn steps(text: &str) -> Vec<Step> {
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
            steps.extend(block_steps(&block, number + 1));
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
        return Vec::from_iter(step(first, &block.join("\n")));
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
        while command.ends_with('\\') {
            let Some((more, _)) = lines.next() else { break };
            command = format!("{command}\n{more}");
        }
        steps.extend(step(number, &command));
    }
    for step in &mut steps {
        while step
            .expected
            .last()
            .is_some_and(|line| line.trim().is_empty())
        {
            step.expected.pop();
        }
    }
    steps
}

fn step(line: usize, command: &str) -> Option<Step> {
    let command = command.trim();
    let background = command.strip_suffix(" &");
    (!command.is_empty()).then(|| Step {
        line,
        command: background.unwrap_or(command).to_owned(),
        background: background.is_some(),
        expected: Vec::new(),
    })
}

/// Whether the lines are the expected ones. An expected line `...` stands for any number of lines, and
/// `...` within a line for any text. Blanks at the end of a line don't count.
pub(crate) fn matches(expected: &[String], lines: &[String]) -> bool {
    match (expected.split_first(), lines.split_first()) {
        (None, None) => true,
        (None, Some(_)) => false,
        (Some((first, rest)), _) if first.trim() == "..." => {
            (0..=lines.len()).any(|skip| matches(rest, &lines[skip..]))
        }
        (Some(_), None) => false,
        (Some((first, rest)), Some((line, others))) => {
            matches_line(first.trim_end(), line.trim_end()) && matches(rest, others)
        }
    }
}

fn matches_line(expected: &str, line: &str) -> bool {
    let mut parts = expected.split("...");
    let first = parts.next().unwrap_or_default();
    let Some(mut line) = line.strip_prefix(first) else {
        return false;
    };
    let mut parts: Vec<&str> = parts.collect();
    let Some(last) = parts.pop() else {
        return line.is_empty();
    };
    for part in parts {
        match line.split_once(part) {
            Some((_, rest)) => line = rest,
            None => return false,
        }
    }
    line.ends_with(last)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(text: &[&str]) -> Vec<String> {
        text.iter().map(|line| (*line).to_owned()).collect()
    }

    #[test]
    fn commands_and_their_output_are_told_apart() {
        let text = "\
# Title

```console
$ percolator up --ephemeral &
ready in ... s
$ percolator put a \\
    b c

$ percolator get a b
c

```

```rust
$ not(this)
```
";
        assert_eq!(
            steps(text),
            [
                Step {
                    line: 4,
                    command: "percolator up --ephemeral".into(),
                    background: true,
                    expected: lines(&["ready in ... s"]),
                },
                Step {
                    line: 6,
                    command: "percolator put a \\\n    b c".into(),
                    ..Step::default()
                },
                Step {
                    line: 9,
                    command: "percolator get a b".into(),
                    expected: lines(&["c"]),
                    ..Step::default()
                },
            ]
        );
    }

    #[test]
    fn a_block_without_prompts_is_a_script() {
        let text = "```sh\ncat > a <<END\nhello\nEND\n```\n";
        let steps = steps(text);
        assert_eq!(steps.len(), 1);
        assert_eq!(steps[0].command, "cat > a <<END\nhello\nEND");
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
    }

    #[test]
    fn output_is_compared_with_wildcards() {
        let check = |expected: &[&str], found: &[&str]| matches(&lines(expected), &lines(found));
        assert!(check(&["a"], &["a  "]));
        assert!(!check(&["a"], &["a", "b"]));
        assert!(!check(&["a", "b"], &["a"]));
        assert!(check(&["a", "..."], &["a", "b", "c"]));
        assert!(check(&["...", "c"], &["a", "b", "c"]));
        assert!(check(&["..."], &[]));
        assert!(!check(&["a", "...", "d"], &["a", "b", "c"]));
        assert!(check(&["ready in ... s; ..."], &["ready in 0.3 s; go"]));
        assert!(!check(&["ready in ... s"], &["ready in 0.3 m"]));
        assert!(check(&["a ... b ... c"], &["a 1 b 2 c"]));
    }
}
