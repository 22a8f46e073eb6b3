//! What clients do, and what must come out of it.

pub mod again;
pub mod append;
pub mod bank;
pub mod changes;
pub mod counter;
pub mod cycle;
pub mod index;
pub mod large;
pub mod observe;
pub mod own;
pub mod past;
pub mod pipelined;
pub mod react;
pub mod skew;
pub mod tables;

use std::sync::Arc;

use bytes::Bytes;
use percolator_client::Error;
use percolator_client::transport::BoxFuture;

use crate::recorder::Session;

/// A table to be made: its name, and the rows at which it is cut.
pub type TableSpec = (&'static str, Vec<&'static str>);

/// Transactions of one kind.
pub trait Workload: Send + Sync {
    /// Its name.
    fn name(&self) -> &'static str;

    /// What it looks at, by the names by which it fails; in the end by the first one.
    fn invariants(&self) -> &'static [&'static str];

    /// The tables that it needs.
    fn tables(&self) -> Vec<TableSpec>;

    /// Whether the history's checks leave the table out: it was deleted, and a late request may have made another one of this
    /// name, or transactions on it are not recorded.
    fn is_left_out(&self, _table: &str) -> bool {
        false
    }

    /// One transaction that writes what there is at the beginning.
    fn load<'a>(&'a self, session: &'a Session) -> BoxFuture<'a, Result<(), Error>>;

    /// One transaction, with whatever is checked at once.
    fn step<'a>(&'a self, session: &'a Session) -> BoxFuture<'a, Result<(), Error>>;

    /// Whether everything is as it must be, when nobody works any more: what is wrong, if anything.
    fn check<'a>(&'a self, session: &'a Session) -> BoxFuture<'a, Result<Option<String>, Error>>;
}

/// The workloads by name.
pub fn all() -> Vec<Arc<dyn Workload>> {
    vec![
        Arc::new(bank::Bank),
        Arc::new(cycle::Cycle),
        Arc::new(skew::Skew),
        Arc::new(counter::Counter::default()),
        Arc::new(append::Append::default()),
        Arc::new(index::Index),
        Arc::new(large::Large::default()),
        Arc::new(tables::Tables::default()),
        Arc::new(own::Own),
        Arc::new(again::Again),
        Arc::new(pipelined::Pipelined),
        Arc::new(observe::Observe),
        Arc::new(changes::Changes::default()),
        Arc::new(react::React),
    ]
}

/// The names to draw a run's workloads from. Those that came later are left out where the run has none of them: what
/// others do in a seed stays as it was.
pub(crate) fn names(chosen: &[Arc<dyn Workload>]) -> Vec<&'static str> {
    let names = all().into_iter().map(|all| all.name());
    let is_chosen = |name: &str| chosen.iter().any(|chosen| chosen.name() == name);
    names
        .filter(|name| {
            ![pipelined::NAME, observe::NAME, changes::NAME, react::NAME].contains(name)
                || is_chosen(name)
        })
        .collect()
}

/// A value that is a number, and unlike every other one: `17 client-1.2/5`, so that a reader's source is
/// known.
pub(crate) fn tagged(number: i64, session: &Session) -> String {
    let nonce = session.rng.lock().next() & 0xffff_ffff;
    format!("{number} {}/{nonce:08x}", session.name)
}

/// The number in a value; 0 where there is none.
pub(crate) fn number(value: Option<&Bytes>) -> i64 {
    value
        .and_then(|value| std::str::from_utf8(value).ok())
        .and_then(|text| text.split(' ').next()?.parse().ok())
        .unwrap_or_default()
}
