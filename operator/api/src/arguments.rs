//! What a manifest says to the servers' programs, as their arguments: for pods, processes and threads alike. What the master
//! reads while it runs is [`Spec::for_master`](crate::Spec::for_master).

use crate::{Oracle, Tablets};

impl Oracle {
    /// Arguments of `percolator-tso`.
    pub fn to_args(&self) -> Vec<String> {
        vec![format!("--window={}ms", self.window.as_millis())]
    }
}

impl Tablets {
    /// Arguments of `percolator-tablet`.
    pub fn to_args(&self) -> Vec<String> {
        vec![
            format!("--engine={}", self.storage.engine),
            format!("--cache-bytes={}", self.storage.cache_size.bytes()),
        ]
    }
}
