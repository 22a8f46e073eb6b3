//! Counts of test functions, from what test programs print.

use std::fmt;

/// A test that did not do its work.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Skipped {
    pub(crate) test: String,
    pub(crate) why: String,
}

/// Test functions by what became of them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tally {
    pub(crate) passed: u64,
    pub(crate) failed: u64,
    pub(crate) skipped: Vec<Skipped>,
    /// Where programs with failed tests panicked, and what was said there.
    pub(crate) panics: Vec<String>,
}

impl Tally {
    pub(crate) fn add(&mut self, other: Self) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.skipped.extend(other.skipped);
        self.panics.extend(other.panics);
    }

    /// Takes what another one displayed, among other lines.
    pub(crate) fn read(lines: &[&str]) -> Self {
        let counts = lines.iter().find_map(|line| line.strip_prefix("tests: "));
        let count = |what| count(counts?, what);
        let skipped = lines.iter().filter_map(|line| {
            let (test, why) = line.strip_prefix("skipped: ")?.split_once(": ")?;
            Some(Skipped {
                test: test.to_owned(),
                why: why.to_owned(),
            })
        });
        Self {
            passed: count("passed").unwrap_or_default(),
            failed: count("failed").unwrap_or_default(),
            skipped: skipped.collect(),
            panics: Vec::new(),
        }
    }
}

/// How many there are, and a line for each that was skipped; nothing where there were none to run.
impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if *self == Self::default() {
            return Ok(());
        }
        let (passed, failed, skipped) = (self.passed, self.failed, self.skipped.len());
        writeln!(
            f,
            "tests: {passed} passed, {failed} failed, {skipped} skipped"
        )?;
        for skipped in &self.skipped {
            writeln!(f, "skipped: {}: {}", skipped.test, skipped.why)?;
        }
        Ok(())
    }
}

/// The start of a line by which a test reports that this machine doesn't let it do its work. The
/// test harness knows only tests that are ignored from the start.
const SKIPPED: &str = "SKIPPED: ";

/// Reads the lines of test programs that were run with `--show-output`: without it the tests
/// that skip aren't reported.
#[derive(Debug, Default)]
pub(crate) struct Reader {
    tally: Tally,
    /// Tests that are known to be skipped in the current run.
    ignored: u64,
    declined: u64,
    section: Section,
    /// Whose output it is.
    test: String,
    /// The panics of the current run, unless their test passed, and how many lines of the last one are still to come.
    panics: Vec<String>,
    of_panic: usize,
}

/// So many lines say what a panic is about; more are in the output.
const PANIC_LINES: usize = 4;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Section {
    #[default]
    Running,
    /// Output of tests that passed: of interest to nobody.
    Successes,
    Failures,
}

impl Reader {
    /// Takes a line; says whether it is worth showing.
    pub(crate) fn line(&mut self, line: &str) -> bool {
        if let Some(result) = RunResult::parse(line) {
            self.end(&result);
            return true;
        }
        match line {
            "successes:" => self.section = Section::Successes,
            "failures:" => self.section = Section::Failures,
            _ => {}
        }
        if let Some(test) = line
            .strip_prefix("---- ")
            .and_then(|rest| rest.strip_suffix(" stdout ----"))
        {
            test.clone_into(&mut self.test);
        }
        if self.section != Section::Successes {
            self.note_panic(line);
        }
        match self.section {
            Section::Running => {
                if let Some((test, why)) = ignored(line) {
                    self.ignored += 1;
                    self.skip(test, why);
                } else if let Some((before, why)) = line.split_once(SKIPPED) {
                    // Output that isn't captured: it can follow the test's name.
                    let test = before
                        .strip_prefix("test ")
                        .and_then(|rest| rest.strip_suffix(" ... "))
                        .unwrap_or("a test");
                    self.declined += 1;
                    self.skip(test, why);
                }
                true
            }
            Section::Successes => {
                let Some(why) = line.strip_prefix(SKIPPED) else {
                    return false;
                };
                let test = self.test.clone();
                // Several reasons are still one test.
                if self
                    .tally
                    .skipped
                    .last()
                    .is_none_or(|last| last.test != test)
                {
                    self.declined += 1;
                    self.skip(&test, why);
                }
                true
            }
            Section::Failures => true,
        }
    }

    fn note_panic(&mut self, line: &str) {
        if line.starts_with("thread '") && line.contains(" panicked at ") {
            self.of_panic = PANIC_LINES;
        } else if line.is_empty() || line == "stack backtrace:" {
            self.of_panic = 0;
        }
        if self.of_panic > 0 {
            self.of_panic -= 1;
            self.panics.push(line.to_owned());
        }
    }

    fn skip(&mut self, test: &str, why: &str) {
        self.tally.skipped.push(Skipped {
            test: test.to_owned(),
            why: why.to_owned(),
        });
    }

    fn end(&mut self, result: &RunResult) {
        self.tally.passed += result.passed.saturating_sub(self.declined);
        self.tally.failed += result.failed;
        let panics = std::mem::take(&mut self.panics);
        if result.failed > 0 {
            self.tally.panics.extend(panics);
        }
        self.of_panic = 0;
        for _ in self.ignored..result.ignored {
            self.skip("a test", "ignored");
        }
        (self.ignored, self.declined) = (0, 0);
        self.section = Section::Running;
    }

    pub(crate) fn finish(mut self) -> Tally {
        // Of a program that died before it could say how many failed.
        self.tally.panics.append(&mut self.panics);
        self.tally
    }
}

/// The line that ends a run.
struct RunResult {
    passed: u64,
    failed: u64,
    ignored: u64,
}

impl RunResult {
    /// Takes `test result: ok. 3 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out; ...`.
    fn parse(line: &str) -> Option<Self> {
        let (_, counts) = line.strip_prefix("test result: ")?.split_once(". ")?;
        Some(Self {
            passed: count(counts, "passed")?,
            failed: count(counts, "failed")?,
            ignored: count(counts, "ignored")?,
        })
    }
}

/// One of counts as `3 passed, 0 failed`.
fn count(counts: &str, what: &str) -> Option<u64> {
    counts.split([',', ';']).find_map(|count| {
        let (number, name) = count.trim().split_once(' ')?;
        (name == what).then(|| number.parse().ok())?
    })
}

/// Takes `test NAME ... ignored` and `test NAME ... ignored, WHY`.
fn ignored(line: &str) -> Option<(&str, &str)> {
    let (test, rest) = line.strip_prefix("test ")?.split_once(" ... ignored")?;
    match rest.strip_prefix(", ") {
        Some(why) => Some((test, why)),
        None if rest.is_empty() => Some((test, "ignored, it doesn't say why")),
        None => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> (Tally, Vec<&str>) {
        let mut reader = Reader::default();
        let shown = text.lines().filter(|line| reader.line(line)).collect();
        (reader.finish(), shown)
    }

    fn skipped(test: &str, why: &str) -> Skipped {
        Skipped {
            test: test.into(),
            why: why.into(),
        }
    }

    #[test]
    fn what_is_displayed_can_be_read_again() {
        assert_eq!(Tally::default().to_string(), "");
        let tally = Tally {
            passed: 12,
            failed: 1,
            skipped: vec![skipped("a::b", "no Go toolchain: go is missing")],
            panics: Vec::new(),
        };
        let text = tally.to_string();
        assert_eq!(
            text,
            "\
tests: 12 passed, 1 failed, 1 skipped
skipped: a::b: no Go toolchain: go is missing
"
        );
        let lines: Vec<&str> = ["", "disk: 5 GB free"]
            .into_iter()
            .chain(text.lines())
            .collect();
        assert_eq!(Tally::read(&lines), tally);
        assert_eq!(Tally::read(&[]), Tally::default());
    }

    #[test]
    fn runs_are_added() {
        let (tally, _) = read(
            "\
running 2 tests
test a ... ok
test b ... ok

test result: ok. 2 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.00s

running 2 tests
test c ... ok
test d ... FAILED

test result: FAILED. 1 passed; 1 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.00s
",
        );
        assert_eq!((tally.passed, tally.failed), (3, 1));
        assert_eq!(tally.skipped, []);
    }

    #[test]
    fn ignored_tests_are_skipped_with_their_reason() {
        let (tally, _) = read(
            "\
test a ... ignored, needs a cluster
test b ... ignored
test src/lib.rs - f (line 3) ... ignored
test result: ok. 4 passed; 0 failed; 3 ignored; 0 measured; 0 filtered out; finished in 0.00s
",
        );
        assert_eq!(tally.passed, 4);
        assert_eq!(tally.skipped.len(), 3);
        assert_eq!(tally.skipped[0], skipped("a", "needs a cluster"));
    }

    #[test]
    fn a_test_that_declines_is_skipped_not_passed() {
        let (tally, shown) = read(
            "\
test full ... ok
test other ... ok

successes:

---- full stdout ----
lots of output
SKIPPED: this needs root
SKIPPED: and more

---- other stdout ----
lots of output

successes:
    full
    other

test result: ok. 2 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.00s
",
        );
        assert_eq!(tally.passed, 1);
        assert_eq!(tally.skipped, [skipped("full", "this needs root")]);
        assert!(!shown.contains(&"lots of output"));
    }

    #[test]
    fn output_that_is_not_captured_is_understood() {
        let (tally, _) = read(
            "\
test full ... SKIPPED: this needs root
ok
test result: ok. 1 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.00s
",
        );
        assert_eq!(tally.passed, 0);
        assert_eq!(tally.skipped, [skipped("full", "this needs root")]);
    }

    #[test]
    fn panics_of_programs_that_fail_are_kept() {
        let (tally, _) = read(
            "\
thread 'a' (7) panicked at src/a.rs:1:2:
expected
stack backtrace:
   0: f
test a - should panic ... ok

test result: ok. 1 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.00s

test b ... FAILED

failures:

---- b stdout ----
thread 'b' (8) panicked at src/b.rs:3:4:
one
two

failures:
    b

test result: FAILED. 0 passed; 1 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.00s
",
        );
        let kept = ["thread 'b' (8) panicked at src/b.rs:3:4:", "one", "two"];
        assert_eq!(tally.panics, kept);
    }

    #[test]
    fn output_of_failures_is_shown() {
        let (tally, shown) = read(
            "\
successes:

---- a stdout ----
quiet

successes:
    a

failures:

---- b stdout ----
loud

failures:
    b

test result: FAILED. 1 passed; 1 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.00s
",
        );
        assert_eq!((tally.passed, tally.failed), (1, 1));
        assert!(shown.contains(&"loud"));
        assert!(!shown.contains(&"quiet"));
    }
}
