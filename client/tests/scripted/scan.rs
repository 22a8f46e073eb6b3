//! Scans: every range, direction, limit and page against a map of the cells, and continuations behind every fault.

use std::collections::BTreeMap;

use bytes::Bytes;
use percolator_client::{Client, Options, Range, Txn, index_row, split_index_row};

use crate::cluster::{INDEX, TABLE};
use crate::faults::{harmless, harmless_to_reads};
use crate::network::{Fault, Kind};
use crate::outcome::Bench;

type Cells = BTreeMap<(Bytes, Bytes), Bytes>;

/// Rows of all three tablets, at their edges and beside them.
const ROWS: [&str; 12] = [
    "a", "b", "b\0", "g", "h", "h\0", "k", "o", "p", "q", "q\u{1}", "z",
];
/// Where ranges begin and end.
const EDGES: [&str; 10] = ["", "a", "b", "b\0", "c", "h", "k", "p", "q", "zz"];

fn key(row: &str, column: &str) -> (Bytes, Bytes) {
    (row.to_owned().into(), column.to_owned().into())
}

/// Writes the cells by a client of its own, and returns them.
fn fill(bench: &Bench) -> Cells {
    let mut cells = Cells::new();
    for (number, row) in ROWS.iter().enumerate() {
        let columns: &[&str] = if number % 3 == 1 {
            &["c", "d", "e"]
        } else {
            &["c"]
        };
        for column in columns {
            let value = Bytes::from(format!("{row}/{column}"));
            cells.insert(key(row, column), value);
        }
    }
    let (_network, client) = bench.other();
    bench.run(async {
        let txn = client.begin().await.expect("it begins");
        for ((row, column), value) in &cells {
            txn.put(TABLE, row, column, value.clone())
                .expect("it is kept");
        }
        txn.commit().await.expect("it commits");
        // So many deleted cells that servers answer pages without a cell.
        for delete in [false, true] {
            let txn = client.begin().await.expect("it begins");
            for number in 0..12 {
                let row = format!("{}{number}", if number < 6 { "ab" } else { "ox" });
                if delete {
                    txn.delete(TABLE, row, "c").expect("it is kept");
                } else {
                    txn.put(TABLE, row, "c", "x").expect("it is kept");
                }
            }
            txn.commit().await.expect("it commits");
        }
        client.settle().await;
    });
    cells
}

/// Own writes: new cells, other values, deletions, locks alone, and cells written again, in this order.
fn write(txn: &Txn, cells: &mut Cells) {
    let mut put = |row: &str, column: &str, value: &str| {
        txn.put(TABLE, row, column, value.to_owned())
            .expect("it is kept");
        cells.insert(key(row, column), value.to_owned().into());
    };
    put("A", "c", "own");
    put("a", "b", "own");
    put("b", "d", "own");
    put("h", "c", "own");
    put("i", "c", "own");
    put("o", "c", "own");
    put("o", "c", "own again");
    put("zz", "c", "own");
    put("k", "x", "own");
    let mut delete = |row: &str, column: &str| {
        txn.delete(TABLE, row, column).expect("it is kept");
        cells.remove(&key(row, column));
    };
    delete("b", "c");
    delete("g", "c");
    delete("k", "x");
    delete("p", "c");
    delete("nothing", "c");
    txn.delete(TABLE, "q", "c").expect("it is kept");
    txn.put(TABLE, "q", "c", "back").expect("it is kept");
    cells.insert(key("q", "c"), "back".into());
}

struct Scan {
    start: &'static str,
    end: &'static str,
    reverse: bool,
    limit: Option<u64>,
    limit_rows: Option<u64>,
}

impl Scan {
    fn range(&self) -> Range {
        let mut range = Range::rows(self.start, self.end);
        if self.reverse {
            range = range.reverse();
        }
        if let Some(limit) = self.limit {
            range = range.limit(limit);
        }
        if let Some(rows) = self.limit_rows {
            range = range.limit_rows(rows);
        }
        range
    }

    fn expected(&self, cells: &Cells) -> Vec<(Bytes, Bytes, Bytes)> {
        let is_in = |row: &[u8]| {
            row >= self.start.as_bytes() && (self.end.is_empty() || row < self.end.as_bytes())
        };
        let in_range = cells.iter().filter(|((row, _), _)| is_in(row));
        let mut found: Vec<_> = in_range
            .map(|((row, column), value)| (row.clone(), column.clone(), value.clone()))
            .collect();
        if self.reverse {
            found.reverse();
        }
        if let Some(rows) = self.limit_rows {
            let mut seen: Vec<Bytes> = Vec::new();
            found.retain(|(row, ..)| {
                if seen.last() != Some(row) {
                    seen.push(row.clone());
                }
                seen.len() as u64 <= rows
            });
        }
        let limit = self.limit.map_or(usize::MAX, |limit| limit as usize);
        found.truncate(limit);
        found
    }

    async fn check(&self, txn: &Txn, cells: &Cells) {
        let scan = txn.scan(TABLE, self.range()).await.expect("it begins");
        let found = scan.collect().await.expect("every server answers");
        let found: Vec<_> = found
            .into_iter()
            .map(|entry| (entry.row, entry.column, entry.value))
            .collect();
        assert_eq!(found, self.expected(cells), "{:?}", self.range());
    }
}

fn scans() -> Vec<Scan> {
    let mut scans = Vec::new();
    for start in EDGES {
        for end in EDGES {
            for reverse in [false, true] {
                for (limit, limit_rows) in [
                    (None, None),
                    (Some(1), None),
                    (Some(4), None),
                    (None, Some(2)),
                    (Some(3), Some(3)),
                    (Some(0), None),
                    (None, Some(0)),
                ] {
                    scans.push(Scan {
                        start,
                        end,
                        reverse,
                        limit,
                        limit_rows,
                    });
                }
            }
        }
    }
    scans
}

fn check_all(own_writes: bool, page: usize, options: Options) {
    let bench = Bench::with(options);
    let mut cells = fill(&bench);
    bench.network.page(page);
    bench.run(async {
        let txn = bench.client.begin().await.expect("it begins");
        if own_writes {
            write(&txn, &mut cells);
        }
        for scan in scans() {
            scan.check(&txn, &cells).await;
        }
        check_gets(&txn, &cells).await;
    });
}

async fn check_gets(txn: &Txn, cells: &Cells) {
    for row in ROWS.iter().chain(&["A", "i", "zz", "nothing"]) {
        for column in ["b", "c", "d", "e", "x"] {
            let expected = cells.get(&key(row, column)).cloned();
            let value = txn.get(TABLE, row, column).await.expect("an answer");
            assert_eq!(value, expected, "{row:?} {column}");
            let at_once = [
                (TABLE, row.as_bytes(), column.as_bytes()),
                (TABLE, &b"a"[..], &b"c"[..]),
                (TABLE, &b"k"[..], &b"c"[..]),
                (TABLE, &b"none"[..], &b"c"[..]),
                (TABLE, &b"z"[..], &b"c"[..]),
            ];
            let values = txn.batch_get(&at_once).await.expect("an answer");
            let of = |row: &str| cells.get(&key(row, "c")).cloned();
            assert_eq!(values, [expected, of("a"), of("k"), None, of("z")]);
        }
    }
}

#[test]
fn scans_return_what_is_there_page_by_page() {
    for page in [1, 2, 5, 1_000] {
        check_all(false, page, Options::default());
    }
}

#[test]
fn scans_and_reads_see_own_writes_that_are_buffered() {
    for page in [1, 3] {
        check_all(true, page, Options::default());
    }
}

#[test]
fn scans_and_reads_see_own_writes_that_are_flushed() {
    // Each write is flushed, and some are while others wait for that.
    for (page, buffer_bytes) in [(1, 1), (2, 300), (1_000, 700)] {
        let options = Options {
            buffer_bytes,
            ..Options::default()
        };
        check_all(true, page, options);
    }
}

#[test]
fn a_page_that_is_asked_for_again_is_the_same_page() {
    let mut faults = harmless_to_reads();
    faults.push(Fault::Twice(std::time::Duration::ZERO));
    for reverse in [false, true] {
        for fault in &faults {
            for at in 0..14 {
                let bench = Bench::new();
                let cells = fill(&bench);
                bench.network.page(2);
                let fault = fault.clone();
                bench.network.script(move |sent| {
                    (sent.kind == Kind::Scan && sent.nth == at).then(|| fault.clone())
                });
                let scan = Scan {
                    start: "b",
                    end: "",
                    reverse,
                    limit: None,
                    limit_rows: None,
                };
                bench.run(async {
                    let txn = bench.client.begin().await.expect("it begins");
                    scan.check(&txn, &cells).await;
                });
            }
        }
    }
}

/// Each of the rows is an entry of an index; values that are part of one another lie beside each other.
async fn fill_index(client: &Client, values: &[&[u8]], rows: &[&[u8]]) {
    let txn = client.begin().await.expect("it begins");
    for value in values {
        for row in rows {
            let entry = index_row(value, row);
            txn.put(INDEX, entry, "", "x").expect("it is kept");
        }
    }
    txn.commit().await.expect("it commits");
}

#[test]
fn an_index_has_the_rows_of_a_value_and_of_no_other() {
    let values: [&[u8]; 8] = [
        b"",
        b"\0",
        b"\0\0",
        b"\0\x01",
        b"a",
        b"a\0",
        b"ab",
        b"\xff\xff",
    ];
    let rows: [&[u8]; 5] = [b"1", b"", b"\0", b"\xff", b"2/3"];
    let bench = Bench::new();
    bench.network.page(3);
    bench.run(async {
        fill_index(&bench.client, &values, &rows).await;
        let txn = bench.client.begin().await.expect("it begins");
        let mut all = Vec::new();
        for value in values {
            let scan = txn.scan(INDEX, Range::index_value(value)).await;
            let found = scan.expect("it begins").collect().await;
            let mut seen = Vec::new();
            for entry in found.expect("every server answers") {
                let (of, row) = split_index_row(&entry.row).expect("an entry");
                assert_eq!(of, value);
                seen.push(row.to_vec());
                all.push(entry.row.clone());
            }
            let mut expected = rows.map(<[u8]>::to_vec).to_vec();
            expected.sort();
            assert_eq!(seen, expected, "{value:?}");
        }
        // Values are in their order, and so are the entries.
        assert!(all.is_sorted());
        assert_eq!(all.len(), values.len() * rows.len());
    });
    assert!(split_index_row(b"").is_none());
}

#[test]
fn a_prefix_ends_where_it_does_not_lead_any_more() {
    let rows: [&[u8]; 7] = [
        b"a",
        b"a\xff",
        b"a\xff\xff",
        b"b",
        b"\xff",
        b"\xff\xff",
        b"\xfe",
    ];
    let bench = Bench::new();
    bench.run(async {
        let txn = bench.client.begin().await.expect("it begins");
        for row in rows {
            txn.put(INDEX, row, "c", "x").expect("it is kept");
        }
        txn.commit().await.expect("it commits");
        let txn = bench.client.begin().await.expect("it begins");
        for prefix in rows.iter().chain([&&b""[..]]) {
            let scan = txn.scan(INDEX, Range::prefix(prefix.to_vec())).await;
            let found = scan.expect("it begins").collect().await;
            let found: Vec<_> = found
                .expect("an answer")
                .into_iter()
                .map(|cell| cell.row)
                .collect();
            let mut expected: Vec<_> = rows
                .into_iter()
                .filter(|row| row.starts_with(prefix))
                .collect();
            expected.sort_unstable();
            assert_eq!(found, expected, "{prefix:?}");
            let one = txn.scan(INDEX, Range::row(prefix)).await;
            let one = one.expect("it begins").collect().await.expect("an answer");
            assert_eq!(one.len(), usize::from(!prefix.is_empty()), "{prefix:?}");
        }
    });
}

#[test]
fn a_large_scan_does_not_lose_its_place_when_the_master_is_away() {
    for fault in harmless() {
        let bench = Bench::new();
        let cells = fill(&bench);
        bench.network.page(1);
        // Every second page fails once, and the directory can't be asked.
        bench.network.script(move |sent| match sent.kind {
            Kind::Scan => (sent.nth % 2 == 1).then(|| fault.clone()),
            Kind::Locate => (sent.nth > 0).then_some(Fault::LoseRequest),
            _ => None,
        });
        for reverse in [false, true] {
            let scan = Scan {
                start: "",
                end: "",
                reverse,
                limit: None,
                limit_rows: None,
            };
            bench.run(async {
                let txn = bench.client.begin().await.expect("it begins");
                scan.check(&txn, &cells).await;
            });
        }
    }
}
