//! What a command printed beside what a page shows, line by line.

use std::fmt;

/// A line of a [`Comparison`].
#[derive(Clone, Debug, PartialEq, Eq)]
enum Difference {
    /// As expected; the expected line, with its wildcards.
    Same(String),
    /// Expected, and not printed.
    Missing(String),
    /// Printed, and not expected.
    Unexpected(String),
}

/// The shortest list of differences between two texts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Comparison(Vec<Difference>);

impl Comparison {
    pub(crate) fn new(expected: &[String], printed: &[String]) -> Self {
        let printed = without_empty_end(printed);
        let difference = difference_cost(printed);
        let costs = costs(expected, printed);
        let (mut at, mut to) = (0, 0);
        let mut differences = Vec::new();
        while at < expected.len() || to < printed.len() {
            let here = costs[at][to];
            match (expected.get(at), printed.get(to)) {
                (Some(line), Some(_)) if is_wild(line) && costs[at][to + 1] + 1 == here => to += 1,
                (Some(line), _) if is_wild(line) => {
                    differences.push(Difference::Same(line.clone()));
                    at += 1;
                }
                (Some(line), Some(found))
                    if matches_line(line, found) && costs[at + 1][to + 1] == here =>
                {
                    differences.push(Difference::Same(line.clone()));
                    (at, to) = (at + 1, to + 1);
                }
                (Some(line), _) if costs[at + 1][to] + difference == here => {
                    differences.push(Difference::Missing(line.clone()));
                    at += 1;
                }
                (_, found) => {
                    differences.extend(found.cloned().map(Difference::Unexpected));
                    to += 1;
                }
            }
        }
        Self(differences)
    }

    pub(crate) fn is_match(&self) -> bool {
        let mut differences = self.0.iter();
        differences.all(|it| matches!(it, Difference::Same(_)))
    }

    /// What was printed, with the wildcards that match.
    pub(crate) fn lines(&self) -> impl Iterator<Item = &str> {
        self.0.iter().filter_map(|difference| match difference {
            Difference::Same(line) | Difference::Unexpected(line) => Some(line.as_str()),
            Difference::Missing(_) => None,
        })
    }
}

impl fmt::Display for Comparison {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (number, difference) in self.0.iter().enumerate() {
            let (mark, line) = match difference {
                Difference::Same(line) => (' ', line),
                Difference::Missing(line) => ('-', line),
                Difference::Unexpected(line) => ('+', line),
            };
            let end = if number == 0 { "" } else { "\n" };
            write!(f, "{end}{mark} {line}")?;
        }
        Ok(())
    }
}

/// A difference costs more than all lines that wildcards take.
fn difference_cost(printed: &[String]) -> usize {
    printed.len() + 1
}

/// The least cost of the rest of the one text beside the rest of the other.
fn costs(expected: &[String], printed: &[String]) -> Vec<Vec<usize>> {
    let difference = difference_cost(printed);
    let mut costs = vec![vec![0; printed.len() + 1]; expected.len() + 1];
    for at in (0..=expected.len()).rev() {
        for to in (0..=printed.len()).rev() {
            let below = (at < expected.len()).then(|| costs[at + 1][to]);
            let beside = (to < printed.len()).then(|| costs[at][to + 1]);
            let cost = match (expected.get(at), printed.get(to)) {
                (Some(line), Some(found)) if matches_line(line, found) && !is_wild(line) => {
                    Some(costs[at + 1][to + 1])
                }
                (Some(line), _) if is_wild(line) => {
                    below.into_iter().chain(beside.map(|cost| cost + 1)).min()
                }
                _ => {
                    let least = below.into_iter().chain(beside).min();
                    least.map(|cost| cost + difference)
                }
            };
            // Behind the last lines nothing is left to differ.
            costs[at][to] = cost.unwrap_or(0);
        }
    }
    costs
}

fn is_wild(line: &str) -> bool {
    line.trim() == "..."
}

fn without_empty_end(lines: &[String]) -> &[String] {
    let last = lines.iter().rposition(|line| !line.trim().is_empty());
    &lines[..last.map_or(0, |last| last + 1)]
}

fn matches_line(expected: &str, line: &str) -> bool {
    let (expected, line) = (expected.trim_end(), line.trim_end());
    let Some((first, rest)) = expected.split_once("...") else {
        return expected == line;
    };
    let Some(mut line) = line.strip_prefix(first) else {
        return false;
    };
    let (parts, last) = rest.rsplit_once("...").unwrap_or(("", rest));
    for part in parts.split("...") {
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

    fn compare(expected: &[&str], printed: &[&str]) -> Comparison {
        let lines =
            |text: &[&str]| -> Vec<String> { text.iter().map(|line| (*line).to_owned()).collect() };
        Comparison::new(&lines(expected), &lines(printed))
    }

    #[test]
    fn output_is_compared_with_wildcards() {
        let check = |expected: &[&str], printed: &[&str]| compare(expected, printed).is_match();
        assert!(check(&["a"], &["a  "]));
        assert!(check(&["a"], &["a", ""]));
        assert!(!check(&["a"], &["a", "b"]));
        assert!(!check(&["a", "b"], &["a"]));
        assert!(check(&["a", "..."], &["a", "b", "c"]));
        assert!(check(&["...", "c"], &["a", "b", "c"]));
        assert!(check(&["...", "c"], &["c", "b", "c"]));
        assert!(check(&["..."], &[]));
        assert!(!check(&["a", "...", "d"], &["a", "b", "c"]));
        assert!(check(&["ready in ... s; ..."], &["ready in 0.3 s; go"]));
        assert!(!check(&["ready in ... s"], &["ready in 0.3 m"]));
        assert!(check(&["a ... b ... c"], &["a 1 b 2 c"]));
        assert!(!check(&["a ... b ... c"], &["a 1 c"]));
    }

    #[test]
    fn differences_are_shown_between_the_lines_that_match() {
        let comparison = compare(
            &["...", "b ... s", "gone", "d"],
            &["x", "y", "b 0.3 s", "new", "d"],
        );
        assert_eq!(
            comparison.to_string(),
            "  ...\n  b ... s\n- gone\n+ new\n  d"
        );
        let lines: Vec<&str> = comparison.lines().collect();
        assert_eq!(lines, ["...", "b ... s", "new", "d"]);
    }
}
