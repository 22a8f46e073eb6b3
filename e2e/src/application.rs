//! An application that runs beside a test's steps: a bank in a pod of its own, whose money moves all the
//! time, and rows with an index that are written again and again.

use std::fmt::Write as _;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::command::with_input;
use crate::{CHECK_FAILED, Kube, Namespace, PROGRAM, lock, nodes, outcome, say, server_of, wait};

/// Longer than any test: the test ends it.
const DURATION: &str = "3h";
/// Transfers in a second, of all clients: anyone who is away for a moment is missed, and the machine has other things to do.
const RATE: &str = "200";
/// Rows that every import writes, in one transaction.
const ROWS: u64 = 40;
/// Between two imports, for the same reason.
const PAUSE: Duration = Duration::from_millis(500);
/// The table of the rows, and the table of the index of their field `email`.
const TABLE: [&str; 2] = ["--table", "users"];
const INDEX: [&str; 2] = ["--index", "email=users_by_email"];

/// A bank in a pod, and anyone who writes rows with an index from there. What they do ends with the pod.
#[derive(Debug)]
pub struct Application<'a> {
    space: &'a Namespace,
    pod: &'static str,
    cluster: String,
    accounts: u32,
    writer: Option<Writer>,
    /// The failures that were reported last.
    reported: Mutex<FailureCounts>,
}

/// Failures that have reached the application.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct FailureCounts {
    failed: u64,
    unknown: u64,
    imports: u64,
}

/// A thread that writes rows, until it is stopped.
#[derive(Debug)]
struct Writer {
    thread: JoinHandle<()>,
    done: Arc<AtomicU64>,
    /// The errors of failed imports.
    failed: Arc<Mutex<Vec<String>>>,
    stop: Arc<AtomicBool>,
}

impl<'a> Application<'a> {
    /// Starts both, and waits until the money moves and the rows are there.
    pub fn start(
        kube: &Kube,
        space: &'a Namespace,
        cluster: &str,
        accounts: u32,
        clients: u32,
    ) -> Self {
        let mut started = Self::bank(kube, space, cluster, accounts, clients, &[]);
        started.writer = Some(Writer::start(space, started.pod, &started.server()));
        started.goes_on();
        started
    }

    /// Starts the bank alone, with more arguments, and waits until its money moves.
    pub fn bank(
        kube: &Kube,
        space: &'a Namespace,
        cluster: &str,
        accounts: u32,
        clients: u32,
        more: &[&str],
    ) -> Self {
        let server = server_of(cluster);
        let (number, clients) = (accounts.to_string(), clients.to_string());
        let bank = ["-c", &server, "bank", "--duration", DURATION];
        let size = ["--accounts", &number, "--clients", &clients, "--rate", RATE];
        let pod = "bank";
        space.start(kube, pod, &[&bank[..], &size, more].concat());
        let started = Self {
            space,
            pod,
            cluster: cluster.to_owned(),
            accounts,
            writer: None,
            reported: Mutex::default(),
        };
        started.goes_on();
        started
    }

    /// Waits until more money has moved, and more rows were written, than had by now; then the sum holds, and the index. Says
    /// what went wrong since it was last asked.
    pub fn goes_on(&self) {
        let before = wait("what the bank says", || self.busy_seconds());
        let written = self.writer.as_ref().map(|writer| writer.done());
        wait("money to move", || match self.busy_seconds()? {
            now if now > before => Ok(()),
            _ => Err(self.last_words()),
        });
        if let (Some(writer), Some(before)) = (&self.writer, written) {
            // What was under way before isn't what is waited for.
            wait("rows to be written", || match writer.done() {
                now if now > before + 1 => Ok(()),
                now => Err(format!("{now} imports, and {before} before")),
            });
            self.index_holds();
        }
        self.space.all_money_is_there(&self.cluster, self.accounts);
        self.say_what_went_wrong();
    }

    fn say_what_went_wrong(&self) {
        let log = wait("what the bank says", || self.log());
        let now = FailureCounts {
            imports: self.writer.as_ref().map_or(0, |writer| writer.failed()),
            ..of_bank(&log)
        };
        let mut reported = lock(&self.reported);
        self.space.say(&format!(
            "it goes on; meanwhile {} transfers failed, {} have no known outcome, {} imports failed",
            now.failed - reported.failed,
            now.unknown - reported.unknown,
            now.imports - reported.imports,
        ));
        *reported = now;
    }

    /// No transfer and no import has failed so far, and none is without an outcome.
    pub fn nothing_has_failed(&self) {
        let log = wait("what the bank says", || self.log());
        let wrong = of_bank(&log);
        let imports = self.writer.as_ref().map_or(0, |writer| writer.failed());
        assert_eq!((wrong.failed, wrong.unknown, imports), (0, 0, 0), "{log}");
    }

    fn server(&self) -> String {
        server_of(&self.cluster)
    }

    fn log(&self) -> Result<String, String> {
        self.space.log(self.pod)
    }

    /// Of how many seconds the bank has said that money moved.
    fn busy_seconds(&self) -> Result<usize, String> {
        let log = self.log()?;
        Ok(log.lines().filter(|line| has_transfers(line)).count())
    }

    fn last_words(&self) -> String {
        let log = self.space.kubectl(&["logs", self.pod, "--tail=3"]);
        log.unwrap_or_else(|error| error)
    }

    /// Asserts that rows and index agree at a snapshot, while they may be written.
    fn index_holds(&self) {
        let server = self.server();
        let ask = ["exec", self.pod, "--", PROGRAM, "-q", "-c", &server];
        let check = ["check-index"];
        let ask = [&ask[..], &check, &TABLE, &INDEX].concat();
        let said = wait("a check of the index", || {
            let (code, said) = outcome(self.space.command().args(&ask))?;
            // Rows without an entry, or an entry without its row, don't get better by themselves.
            assert_ne!(code, Some(CHECK_FAILED), "{said}");
            match code {
                Some(0) => Ok(said),
                _ => Err(said),
            }
        });
        assert!(said.contains(&format!("agree: {ROWS} rows")), "{said}");
    }

    /// Ends both: no money was lost, and the index holds. Prints what they have done, and what failed meanwhile.
    pub fn ends_well(mut self) {
        self.goes_on();
        if let Some(writer) = self.writer.take() {
            let done = writer.done();
            let failed = writer.end();
            let last = failed.last().map_or_else(String::new, |last| {
                format!(", the last: {}", last.replace('\n', " | "))
            });
            say(&format!("{done} imports, {} failed{last}", failed.len()));
            self.index_holds();
        }
        nodes::terminate(self.space, self.pod);
        self.space.bank_ends_well(self.pod);
    }
}

impl Drop for Application<'_> {
    fn drop(&mut self) {
        // Of a test that has failed: nobody waits for it.
        if let Some(writer) = &self.writer {
            writer.stop.store(true, Ordering::Relaxed);
        }
    }
}

impl Writer {
    fn start(space: &Namespace, pod: &str, server: &str) -> Self {
        let (done, stop) = (Arc::<AtomicU64>::default(), Arc::<AtomicBool>::default());
        let failed = Arc::<Mutex<Vec<String>>>::default();
        let (counted, kept, stopped) = (done.clone(), failed.clone(), stop.clone());
        let ask = ["exec", "-i", pod, "--", PROGRAM, "-q", "-c", server];
        let import = ["import", "--key", "id"];
        let ask = [&ask[..], &import, &TABLE, &INDEX, &["-"]].concat();
        let ask: Vec<String> = ask.into_iter().map(str::to_owned).collect();
        let namespace = space.name().to_owned();
        let thread = std::thread::spawn(move || {
            for round in 0.. {
                if stopped.load(Ordering::Relaxed) {
                    break;
                }
                let began = Instant::now();
                let mut command = Command::new("kubectl");
                command.args(["-n", &namespace]).args(&ask);
                match with_input(&mut command, &records(round)) {
                    Ok(()) => _ = counted.fetch_add(1, Ordering::Relaxed),
                    Err(error) => {
                        let after = began.elapsed().as_secs();
                        lock(&kept).push(format!("after {after} s: {error}"));
                    }
                }
                std::thread::sleep(PAUSE);
            }
        });
        Self {
            thread,
            done,
            failed,
            stop,
        }
    }

    /// How many imports were answered well.
    fn done(&self) -> u64 {
        self.done.load(Ordering::Relaxed)
    }

    /// How many were not.
    fn failed(&self) -> u64 {
        lock(&self.failed).len() as u64
    }

    /// Stops it, and gives what the failed imports said.
    fn end(self) -> Vec<String> {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().expect("it doesn't panic");
        std::mem::take(&mut lock(&self.failed))
    }
}

/// The rows of a round: every entry of the index is another one, and every fifth row has none.
fn records(round: u64) -> String {
    let mut text = String::new();
    for id in 0..ROWS {
        let email = match (id + round) % 5 {
            0 => String::new(),
            _ => format!(r#", "email": "user-{id}@{round}.example""#),
        };
        let _ = writeln!(text, r#"{{"id": "{id:04}", "round": "{round}"{email}}}"#);
    }
    text
}

/// The failures that a bank reports in the lines of its seconds.
fn of_bank(log: &str) -> FailureCounts {
    let mut wrong = FailureCounts::default();
    for line in log.lines().filter(|line| line.contains(" transfers/s")) {
        let words: Vec<&str> = line.split_whitespace().collect();
        for pair in words.windows(2) {
            match *pair {
                ["unknown", count] => wrong.unknown += count.parse().unwrap_or(0),
                [count, "failed,"] => wrong.failed += count.parse().unwrap_or(0),
                _ => {}
            }
        }
    }
    wrong
}

/// Whether a line of a bank reports a second in which money moved.
pub(crate) fn has_transfers(line: &str) -> bool {
    let before = line.split_once(" transfers/s").map(|(before, _)| before);
    let rate = before.and_then(|before| before.split_whitespace().last());
    rate.and_then(|rate| rate.parse().ok())
        .is_some_and(|rate: u64| rate > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_without_transfers_is_none_in_which_money_moved() {
        assert!(has_transfers(
            "   3 s     1207 transfers/s  p50   2.00 ms  p99   9.00 ms"
        ));
        for line in [
            "   4 s        0 transfers/s  p50   0.00 ms  p99   0.00 ms",
            "made 100 accounts in table bank",
            "",
        ] {
            assert!(!has_transfers(line), "{line}");
        }
    }

    #[test]
    fn what_went_wrong_is_counted() {
        let log = "made 100 accounts in table bank
   3 s     1207 transfers/s  p50   2.00 ms  p99   9.00 ms  conflicts 7  unknown 2  sum 5 ok
   4 s       12 transfers/s  p50   2.00 ms  p99   9.00 ms  conflicts 7  unknown 1  sum 5 ok  3 failed, the last: no answer";
        let expected = FailureCounts {
            failed: 3,
            unknown: 3,
            imports: 0,
        };
        assert_eq!(of_bank(log), expected);
    }

    #[test]
    fn rounds_change_every_entry_and_leave_out_others() {
        let emails = |round| {
            let text = records(round);
            assert_eq!(text.lines().count() as u64, ROWS);
            text.lines().filter(|line| line.contains("email")).count() as u64
        };
        assert_eq!(emails(0), ROWS - ROWS / 5);
        let zeroth = |round| records(round).lines().next().map(str::to_owned);
        assert_ne!(zeroth(1), zeroth(2));
        assert!(zeroth(5).is_some_and(|line| !line.contains("email")));
    }
}
