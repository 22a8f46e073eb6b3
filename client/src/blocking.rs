//! The client for applications without an asynchronous runtime: each call returns when it is done.
//!
//! ```no_run
//! use percolator_client::{Error, blocking::Client};
//!
//! # fn main() -> Result<(), Error> {
//! let client = Client::connect("127.0.0.1:7400")?;
//! client.transact(|txn| {
//!     let bob = txn.get("accounts", "bob", "balance")?;
//!     txn.put("accounts", "joe", "balance", bob.unwrap_or_default())?;
//!     txn.delete("accounts", "bob", "balance")
//! })?;
//! # Ok(())
//! # }
//! ```
//!
//! A client has a thread of its own, on which connections, leases and what a commit leaves to be done go on between the
//! calls; clones share it. Calls may come from any thread but those of an asynchronous runtime, where they would stop
//! everything else: there they fail with [`Error::Invalid`].

use std::sync::Arc;

use bytes::Bytes;
use tokio::runtime::{Handle, Runtime};

use crate::{Cell, CellName, Entry, Error, Options, Outcome, Range, Table, Timestamp};

/// A cluster. Clones share its connections, and its thread.
#[derive(Clone)]
pub struct Client {
    client: crate::Client,
    runtime: Arc<Owned>,
}

/// A transaction. Dropped before the commit, it is rolled back.
pub struct Txn {
    txn: crate::Txn,
    runtime: Arc<Owned>,
}

/// A scan under way: an iterator of cells.
pub struct Scan {
    scan: crate::Scan,
    runtime: Arc<Owned>,
}

/// The runtime, which may be dropped anywhere.
struct Owned(Option<Runtime>);

impl Owned {
    fn new() -> Result<Arc<Self>, Error> {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name("percolator")
            .enable_all()
            .build();
        let runtime = runtime
            .map_err(|error| Error::Unavailable(format!("no thread can be had: {error}")))?;
        Ok(Arc::new(Self(Some(runtime))))
    }

    fn wait<T>(&self, call: impl Future<Output = Result<T, Error>>) -> Result<T, Error> {
        match (&self.0, Handle::try_current()) {
            (Some(runtime), Err(_)) => runtime.block_on(call),
            _ => Err(Error::Invalid(
                "a blocking call on a thread of an asynchronous runtime: take percolator_client::Client there, or a \
                 thread for it (tokio::task::spawn_blocking)"
                    .into(),
            )),
        }
    }
}

impl Drop for Owned {
    fn drop(&mut self) {
        if let Some(runtime) = self.0.take() {
            runtime.shutdown_background();
        }
    }
}

impl Client {
    /// Connects to the cluster whose master is at this address, HOST:PORT; of several masters, with commas between.
    ///
    /// # Errors
    /// As [`crate::Client::connect`].
    pub fn connect(master: &str) -> Result<Self, Error> {
        Self::connect_with(master, Options::default())
    }

    /// The same with options.
    ///
    /// # Errors
    /// As [`crate::Client::connect_with`].
    pub fn connect_with(master: &str, options: Options) -> Result<Self, Error> {
        let runtime = Owned::new()?;
        let client = runtime.wait(crate::Client::connect_with(master, options))?;
        Ok(Self { client, runtime })
    }

    /// Begins a transaction.
    ///
    /// # Errors
    /// As [`crate::Client::begin`].
    pub fn begin(&self) -> Result<Txn, Error> {
        let txn = self.runtime.wait(self.client.begin())?;
        Ok(Txn {
            txn,
            runtime: self.runtime.clone(),
        })
    }

    /// Begins a transaction at an earlier snapshot, that only reads.
    ///
    /// # Errors
    /// As [`crate::Client::begin_at`].
    pub fn begin_at(&self, snapshot: Timestamp) -> Result<Txn, Error> {
        let txn = self.runtime.wait(self.client.begin_at(snapshot))?;
        Ok(Txn {
            txn,
            runtime: self.runtime.clone(),
        })
    }

    /// What became of a transaction, by its primary: for [`Error::Unknown`].
    ///
    /// # Errors
    /// As [`crate::Client::outcome`].
    pub fn outcome(&self, start_ts: Timestamp, primary: &Cell) -> Result<Outcome, Error> {
        self.runtime.wait(self.client.outcome(start_ts, primary))
    }

    /// This client with other options, over the same connections.
    #[must_use]
    pub fn with_options(&self, options: Options) -> Self {
        Self {
            client: self.client.with_options(options),
            runtime: self.runtime.clone(),
        }
    }

    /// Runs a transaction and commits it, and begins it again as [`crate::Client::try_transact`] does.
    ///
    /// # Errors
    /// The closure's, or the commit's as the closure's type.
    pub fn transact<T, E: From<Error>>(
        &self,
        mut work: impl FnMut(&Txn) -> Result<T, E>,
    ) -> Result<T, E> {
        let mut attempts = self.client.attempts();
        loop {
            let txn = self.runtime.wait(self.client.begin_by(attempts.deadline))?;
            let txn = Txn {
                txn,
                runtime: self.runtime.clone(),
            };
            let inner = txn.txn.inner.clone();
            let (error, refused) = match work(&txn) {
                Ok(output) => match txn.commit() {
                    Ok(_) => return Ok(output),
                    Err(error) => (None, Some(error)),
                },
                Err(error) => {
                    drop(txn);
                    (Some(error), None)
                }
            };
            let again = async { Ok(attempts.after_end(&inner, refused.as_ref()).await) };
            if self.runtime.wait(again)? {
                continue;
            }
            match (error, refused) {
                (Some(error), _) => return Err(error),
                (None, Some(refused)) => return Err(refused.into()),
                (None, None) => return Err(Error::Ended.into()),
            }
        }
    }

    /// Makes a table, cut at these rows.
    ///
    /// # Errors
    /// As [`crate::Client::create_table`].
    pub fn create_table(&self, name: &str, split_at: &[Bytes]) -> Result<(), Error> {
        self.runtime.wait(self.client.create_table(name, split_at))
    }

    /// Deletes a table with all its rows.
    ///
    /// # Errors
    /// As [`crate::Client::delete_table`].
    pub fn delete_table(&self, name: &str) -> Result<(), Error> {
        self.runtime.wait(self.client.delete_table(name))
    }

    /// The tables, by name.
    ///
    /// # Errors
    /// As [`crate::Client::tables`].
    pub fn tables(&self) -> Result<Vec<Table>, Error> {
        self.runtime.wait(self.client.tables())
    }

    /// Waits for what commits have left to be done: before the process ends.
    ///
    /// # Errors
    /// [`Error::Invalid`].
    pub fn settle(&self) -> Result<(), Error> {
        self.runtime.wait(async {
            self.client.settle().await;
            Ok(())
        })
    }
}

impl Txn {
    /// Its snapshot, and its name.
    pub fn start_ts(&self) -> Timestamp {
        self.txn.start_ts()
    }

    /// The cell's value; `None` where it has none.
    ///
    /// # Errors
    /// As [`crate::Txn::get`].
    pub fn get(
        &self,
        table: &str,
        row: impl AsRef<[u8]>,
        column: impl AsRef<[u8]>,
    ) -> Result<Option<Bytes>, Error> {
        self.runtime.wait(self.txn.get(table, row, column))
    }

    /// The values of several cells, in the same order.
    ///
    /// # Errors
    /// As [`crate::Txn::batch_get`].
    pub fn batch_get(&self, cells: &[CellName<'_>]) -> Result<Vec<Option<Bytes>>, Error> {
        self.runtime.wait(self.txn.batch_get(cells))
    }

    /// The cell's value, which still holds at the commit.
    ///
    /// # Errors
    /// As [`crate::Txn::get_for_update`].
    pub fn get_for_update(
        &self,
        table: &str,
        row: impl AsRef<[u8]>,
        column: impl AsRef<[u8]>,
    ) -> Result<Option<Bytes>, Error> {
        self.runtime
            .wait(self.txn.get_for_update(table, row, column))
    }

    /// The cells of a range of rows, in order.
    ///
    /// # Errors
    /// As [`crate::Txn::scan`].
    pub fn scan(&self, table: &str, range: Range) -> Result<Scan, Error> {
        let scan = self.runtime.wait(self.txn.scan(table, range))?;
        Ok(Scan {
            scan,
            runtime: self.runtime.clone(),
        })
    }

    /// Sets the cell's value at the commit. Waits for room where much was written.
    ///
    /// # Errors
    /// As [`crate::Txn::put`] and [`crate::Txn::ready`].
    pub fn put(
        &self,
        table: &str,
        row: impl AsRef<[u8]>,
        column: impl AsRef<[u8]>,
        value: impl Into<Bytes>,
    ) -> Result<(), Error> {
        self.runtime.wait(async {
            self.txn.ready().await?;
            self.txn.put(table, row, column, value)
        })
    }

    /// Deletes the cell at the commit. Waits for room where much was written.
    ///
    /// # Errors
    /// As [`crate::Txn::delete`] and [`crate::Txn::ready`].
    pub fn delete(
        &self,
        table: &str,
        row: impl AsRef<[u8]>,
        column: impl AsRef<[u8]>,
    ) -> Result<(), Error> {
        self.runtime.wait(async {
            self.txn.ready().await?;
            self.txn.delete(table, row, column)
        })
    }

    /// Commits. Returns the commit_ts, or, where nothing was written, the start_ts.
    ///
    /// # Errors
    /// As [`crate::Txn::commit`].
    pub fn commit(self) -> Result<Timestamp, Error> {
        self.runtime.wait(self.txn.commit())
    }

    /// Ends the transaction without writing anything.
    pub fn rollback(self) {
        self.txn.rollback();
    }
}

impl Iterator for Scan {
    type Item = Result<Entry, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        self.runtime.wait(self.scan.next()).transpose()
    }
}
