//! Rows and the entries of their index are loaded while the tablets of both are split, merged and handed over, and tablet
//! servers are killed: what each row was loaded with last is there, and its index agrees.

use std::io::{BufWriter, Write as _};
use std::process::{Child, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::support::{Choices, Cluster, wait_for};
use serde_json::Value;

/// Of each of both tables.
const ROWS: usize = 3_000;
/// After each fourth of them a server is killed.
const MOVES: u64 = 12;
const SERVERS: u64 = 3;
/// A table, that of its index, and whether all is loaded in one transaction.
const LOADED: [(&str, &str, bool); 2] = [("parts", "by_part", false), ("whole", "by_whole", true)];

/// What a row is loaded with in this round, so that its index entry changes each time.
fn section(row: usize, round: usize) -> String {
    format!("{}-{round:04}", (row + round) % 10)
}

/// An import that is given rows until it is ended.
struct Import {
    table: &'static str,
    index: String,
    child: Child,
    is_over: Arc<AtomicBool>,
    feeder: JoinHandle<Vec<String>>,
}

impl Import {
    fn begin(
        cluster: &Cluster,
        (table, index, is_atomic): (&'static str, &'static str, bool),
    ) -> Self {
        let index = format!("section={index}");
        let mut command = cluster.command(&["import", "--table", table, "--key", "id"]);
        command.args(["--index", &index, "--format", "jsonl", "-"]);
        if is_atomic {
            command.arg("--atomic");
        } else {
            command.args(["--batch", "20"]);
        }
        let command = command.stdin(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("it runs");
        let mut input = BufWriter::new(child.stdin.take().expect("a pipe"));
        let is_over = Arc::<AtomicBool>::default();
        let ends = is_over.clone();
        let feeder = std::thread::spawn(move || {
            let mut last = vec![String::new(); ROWS];
            for number in 0.. {
                let (row, round) = (number % ROWS, number / ROWS);
                // Each row has a value before the end.
                if round > 0 && ends.load(Ordering::Relaxed) {
                    break;
                }
                let section = section(row, round);
                writeln!(input, r#"{{"id":"{row:06}","section":"{section}"}}"#).expect("an import");
                last[row] = section;
                if number % 20 == 0 {
                    input.flush().expect("an import");
                    std::thread::sleep(Duration::from_millis(5));
                }
            }
            last
        });
        Self {
            table,
            index,
            child,
            is_over,
            feeder,
        }
    }

    /// Lets the import end, and checks what is there.
    fn ends(self, cluster: &Cluster) {
        self.is_over.store(true, Ordering::Relaxed);
        let expected = self.feeder.join().expect("all is read");
        let output = self.child.wait_with_output().expect("it ends");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{}: {said}", self.table);
        let exported = cluster.run(&["export", "--table", self.table]).ok();
        let found: Vec<String> = exported
            .lines()
            .map(|line| {
                let row: Value = serde_json::from_str(line).expect("JSON");
                row["section"].as_str().expect("a section").to_owned()
            })
            .collect();
        assert!(found == expected, "{}: {found:?}", self.table);
        let check = ["check-index", "--table", self.table];
        cluster
            .run(&[&check[..], &["--index", &self.index]].concat())
            .ok();
    }
}

/// Splits a tablet at the row, or merges both again.
fn cut(cluster: &Cluster, table: &str, row: &str) {
    let is_there = cluster.starts(table).iter().any(|start| start == row);
    let what = if is_there { "merge" } else { "split" };
    cluster
        .run(&["tablet", what, table, row, "--request-timeout", "1m"])
        .ok();
}

#[test]
fn rows_and_their_indexes_are_loaded_while_tablets_move() {
    let cluster = Cluster::of_three();
    let mut choices = Choices::from_env();
    let imports = LOADED.map(|loaded| Import::begin(&cluster, loaded));
    let tables = LOADED.map(|(table, index, _)| [table, index]).concat();
    wait_for("all tables", || {
        let listed = cluster.run(&["table", "list"]).ok();
        let mut tables = tables.iter();
        tables.all(|table| listed.contains(table)).then_some(())
    });
    for [table, index] in LOADED.map(|(table, index, _)| [table, index]) {
        cut(&cluster, table, "001000");
        cut(&cluster, index, "5");
    }
    for number in 0..MOVES {
        let table = tables[choices.below(tables.len() as u64) as usize];
        let (tablet, to) = cluster.tablet_to_move(table, &mut choices);
        cluster
            .run(&["tablet", "move", &tablet, &to, "--request-timeout", "2m"])
            .ok();
        if number % 2 == 0 {
            cut(
                &cluster,
                "parts",
                &format!("{:06}", (1 + choices.below(3)) * 700),
            );
            cut(&cluster, "by_part", &format!("{}", 1 + choices.below(3)));
        }
        if number % 4 == 3 {
            cluster.kill(&format!("tablet-{}", choices.below(SERVERS)));
        }
    }
    for import in imports {
        import.ends(&cluster);
    }
    cluster.run(&["gc", "verify"]).ok();
}
