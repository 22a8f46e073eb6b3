//! The arguments of the servers' programs, by a manifest: the same for pods, processes and threads. The master reads
//! [`Spec::for_master`](crate::Spec::for_master) while it runs.

use crate::{Oracle, Proxy, Tablets};

impl Oracle {
    /// Arguments of `percolator-tso`.
    pub fn to_args(&self) -> Vec<String> {
        vec![format!("--window={}ms", self.window.as_millis())]
    }
}

impl Proxy {
    /// Arguments of `percolator-proxy`.
    pub fn to_args(&self) -> Vec<String> {
        [
            ("idle-max", self.idle_max),
            ("session-max", self.session_max),
            ("grace", self.grace),
        ]
        .map(|(flag, time)| format!("--{flag}={}ms", time.as_millis()))
        .into()
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
