//! Transactions that several clients share: who joins, at this proxy or at another one, and how what they have written comes to
//! the session that commits it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use percolator_client::{
    Buffered, BufferedChange, BufferedWrite, NotAdded, TableId, Timestamp, escape,
};
use percolator_wire::proxy::v1;
use percolator_wire::proxy::v1::cell_write::Change;
use percolator_wire::proxy::v1::transactions_client::TransactionsClient;
use tokio::sync::{oneshot, watch};
use tonic::Code;
use tonic::transport::Channel;

use super::beginning::Beginning;
use super::{BATCH_CELLS_MAX, CellAt, CellWrite, SessionTxn, Transactions, Values};
use crate::caller::Caller;
use crate::failure::{Failure, Reason};
use crate::sessions::{FinishStep, Refusal, SessionEnd};
use crate::token;

/// Bytes of one call that hands over what was written, about.
const HANDED_BYTES: usize = 1 << 20;

/// What participants that have finished have written; each of them apart.
pub(super) type ParticipantWrites = Arc<Mutex<Vec<Buffered>>>;

/// A participant that has begun.
#[derive(Debug)]
pub(crate) struct Joined {
    pub(crate) session: String,
    pub(crate) start_ts: Timestamp,
    /// Of the cells that were asked for.
    pub(crate) read: Values,
    pub(crate) idle_max: Duration,
}

/// The session of another proxy that a participant here stands for.
pub(super) struct Upstream {
    client: TransactionsClient<Channel>,
    session: String,
    /// What is handed over, once that has begun.
    written: Mutex<Option<Buffered>>,
    is_finished: AtomicBool,
}

impl Upstream {
    /// A call without anything to write: the transaction goes on.
    async fn keep_alive(&self) -> Result<(), Failure> {
        self.write(Vec::new()).await
    }

    async fn write(&self, writes: Vec<v1::CellWrite>) -> Result<(), Failure> {
        let request = v1::WriteRequest {
            session: self.session.clone(),
            writes,
        };
        let written = self.client.clone().write(request).await;
        written.map(drop).map_err(|status| Failure::of(&status))
    }

    /// Hands over what was written. It may be done again.
    async fn finish(&self) -> Result<(), Failure> {
        match self.send_all().await {
            Err(failure) if failure.reason != Reason::ParticipantFinished => return Err(failure),
            // It had come through before.
            _ => self.is_finished.store(true, Ordering::Relaxed),
        }
        Ok(())
    }

    async fn send_all(&self) -> Result<(), Failure> {
        let written = self.written.lock().clone().unwrap_or_default();
        let (mut writes, mut bytes) = (Vec::new(), 0);
        for write in written.writes {
            let value_bytes = match &write.change {
                BufferedChange::Put(value) => value.len(),
                BufferedChange::Delete | BufferedChange::Lock => 0,
            };
            let size = write.row.len() + write.column.len() + value_bytes;
            let write = in_message(write);
            if !writes.is_empty()
                && (writes.len() == BATCH_CELLS_MAX || bytes + size > HANDED_BYTES)
            {
                self.write(std::mem::take(&mut writes)).await?;
                bytes = 0;
            }
            bytes += size;
            writes.push(write);
        }
        let tables = written.tables.into_iter();
        let request = v1::FinishRequest {
            session: self.session.clone(),
            writes,
            tables: tables
                .map(|(name, table)| v1::TableInUse { name, id: table.0 })
                .collect(),
        };
        let finished = self.client.clone().finish(request).await;
        finished.map(drop).map_err(|status| Failure::of(&status))
    }

    async fn roll_back(&self) {
        let session = self.session.clone();
        // If the request is lost, the session expires there without calls.
        let _ = self
            .client
            .clone()
            .rollback(v1::RollbackRequest { session })
            .await;
    }
}

impl Transactions {
    /// Joins the transaction of a session for a client, and reads these cells.
    pub(crate) async fn join(
        self: &Arc<Self>,
        caller: &Caller,
        manager: &str,
        cells: &[CellAt],
        passed_on: bool,
    ) -> Result<Joined, Failure> {
        super::check_count(cells.len())?;
        let elsewhere = token::read(manager).filter(|token| token.proxy != self.server);
        // A made-up token may name what all proxies are behind: it would go round for ever.
        let elsewhere = elsewhere.filter(|_| !passed_on);
        let (session, txn) = match elsewhere {
            Some(token) => self.join_elsewhere(caller, manager, token.proxy).await?,
            None => self.join_here(caller, manager).await?,
        };
        self.metrics.begun.inc();
        Ok(Joined {
            read: self.first_values(&session, cells).await?,
            start_ts: txn.txn.start_ts(),
            session,
            idle_max: self.limits().idle_max,
        })
    }

    async fn join_here(
        &self,
        caller: &Caller,
        manager: &str,
    ) -> Result<(String, SessionTxn), Failure> {
        let client = caller.client(self.client()?);
        let from = caller.address;
        let joined = self.sessions.lock().join(self.now(), from, manager);
        let of = joined.map_err(|refusal| self.refused(manager, refusal))?;
        let mut beginning = Beginning {
            of: self,
            client: from,
            is_done: false,
        };
        let txn = SessionTxn::new(client.join(of.txn.start_ts()).await?);
        let session = token::write(txn.txn.start_ts(), &self.server, rand::random());
        beginning.is_done = true;
        let now = self.now();
        let joined = self
            .sessions
            .lock()
            .joined(now, from, manager, session.clone(), txn.clone());
        if let Err(refusal) = joined {
            txn.roll_back();
            self.ended.notify_waiters();
            return Err(self.refused(manager, refusal));
        }
        Ok((session, txn))
    }

    /// At the proxy with this address: what is written here goes there in the end.
    async fn join_elsewhere(
        self: &Arc<Self>,
        caller: &Caller,
        manager: &str,
        address: &str,
    ) -> Result<(String, SessionTxn), Failure> {
        let Some(channel) = self.peers.reach(address).await else {
            return Err(self.refused(manager, Refusal::Unknown));
        };
        let client = caller.client(self.client()?);
        let from = caller.address;
        let mut beginning = Beginning::place(self, from)?;
        let mut there = TransactionsClient::new(channel);
        let request = v1::JoinRequest {
            session: manager.to_owned(),
            cells: Vec::new(),
            passed_on: true,
        };
        let joined = there.join(caller.pass_on(request)).await;
        let joined = joined.map_err(|status| Failure::of(&status))?.into_inner();
        let upstream = Arc::new(Upstream {
            client: there,
            session: joined.session,
            written: Mutex::default(),
            is_finished: AtomicBool::new(false),
        });
        let txn = match client.join(Timestamp::from_u64(joined.start_ts)).await {
            Ok(txn) => txn,
            Err(error) => {
                upstream.roll_back().await;
                return Err(error.into());
            }
        };
        let txn = SessionTxn {
            upstream: Some(upstream.clone()),
            ..SessionTxn::new(txn)
        };
        let session = token::write(txn.txn.start_ts(), &self.server, rand::random());
        beginning.is_done = true;
        let now = self.now();
        self.sessions
            .lock()
            .joined_elsewhere(now, from, session.clone(), txn.clone());
        let every = Duration::from_millis(joined.idle_max_ms / 3).max(Duration::from_millis(10));
        let ended = txn.ended.subscribe();
        let kept = self.clone().keep(session.clone(), upstream, every, ended);
        tokio::spawn(kept);
        Ok((session, txn))
    }

    /// Waits until the participant has ended. Unless it has finished, its session at the other proxy is rolled back then.
    async fn keep(
        self: Arc<Self>,
        session: String,
        upstream: Arc<Upstream>,
        every: Duration,
        mut ended: watch::Receiver<bool>,
    ) {
        loop {
            tokio::select! {
                _ = ended.wait_for(|ended| *ended) => break,
                () = tokio::time::sleep(every) => {}
            }
            if let Err(failure) = upstream.keep_alive().await {
                self.not_kept(&session, &upstream, &failure);
            }
        }
        if !upstream.is_finished.load(Ordering::Relaxed) {
            upstream.roll_back().await;
        }
    }

    fn not_kept(&self, session: &str, upstream: &Upstream, failure: &Failure) {
        let is_sealed = upstream.written.lock().is_some();
        let end = match (failure.reason.code(), failure.reason) {
            (_, Reason::ParticipantFinished) => {
                upstream.is_finished.store(true, Ordering::Relaxed);
                SessionEnd::Finished
            }
            (_, Reason::SessionUnknown) if is_sealed => SessionEnd::HandOverUnknown,
            (Code::Aborted | Code::FailedPrecondition, _) => SessionEnd::ManagerGone,
            _ => return,
        };
        let ended = self.sessions.lock().abort(self.now(), session, end.clone());
        if let Some(txn) = ended {
            self.roll_back(txn, &end);
        }
    }

    /// Buffers these writes, and hands over all that a participant has written. Goes on to its end also if the caller doesn't wait.
    pub(crate) async fn finish(
        self: &Arc<Self>,
        caller: &Caller,
        session: &str,
        writes: Vec<CellWrite>,
        tables: Vec<(String, TableId)>,
    ) -> Result<(), Failure> {
        super::check_count(writes.len())?;
        let step = self.sessions.lock().finishing(self.now(), session);
        let (txn, is_sealed) = match step {
            Ok(FinishStep::Begin { txn, is_sealed }) => (txn, is_sealed),
            Ok(FinishStep::Done) => return Ok(()),
            Err(refusal) => return Err(self.refused(session, refusal)),
        };
        let (answer, answered) = oneshot::channel();
        let (this, caller, session) = (self.clone(), caller.clone(), session.to_owned());
        tokio::spawn(async move {
            let buffered = this.buffer_last(&session, &txn, &tables, is_sealed, &writes);
            let result = match buffered.await {
                Ok(()) => {
                    drop(writes);
                    caller.handed_on();
                    this.hand_over(&session, &txn, is_sealed).await
                }
                Err(not) => Err(not),
            };
            let result = result.map_err(|not| this.not_handed_over(&session, not));
            // Nobody may wait any more.
            let _ = answer.send(result);
        });
        answered.await.unwrap_or_else(|_| {
            let message = "the participant was not waited for; finish it again";
            Err(Failure::new(Reason::Committing, message))
        })
    }

    /// What it has written doesn't change any more from the first attempt on, whatever comes with a later one.
    async fn buffer_last(
        &self,
        session: &str,
        txn: &SessionTxn,
        tables: &[(String, TableId)],
        is_sealed: bool,
        writes: &[CellWrite],
    ) -> Result<(), NotHandedOver> {
        let pinned = txn.txn.pin(tables);
        pinned.map_err(|table| NotHandedOver::Over(replaced(&table)))?;
        if is_sealed {
            return Ok(());
        }
        let buffered = self.buffer(session, &txn.txn, writes).await;
        buffered.map_err(NotHandedOver::AsBefore)
    }

    async fn hand_over(
        &self,
        session: &str,
        txn: &SessionTxn,
        is_sealed: bool,
    ) -> Result<(), NotHandedOver> {
        match &txn.upstream {
            None => self.give(session, txn)?,
            Some(upstream) => {
                if !is_sealed {
                    let written = txn.txn.end_with_buffered();
                    let written = written
                        .map_err(|error| NotHandedOver::Over(self.failed(session, error)))?;
                    *upstream.written.lock() = Some(written);
                    self.sessions.lock().seal(session);
                }
                let finished = upstream.finish().await;
                finished.map_err(|failure| NotHandedOver::by(failure, is_sealed))?;
                let now = self.now();
                self.sessions
                    .lock()
                    .finish(now, session, SessionEnd::Finished);
            }
        }
        self.roll_back(txn.clone(), &SessionEnd::Finished);
        Ok(())
    }

    fn give(&self, session: &str, txn: &SessionTxn) -> Result<(), NotHandedOver> {
        // Before a commit of the manager can begin.
        let mut sessions = self.sessions.lock();
        let refusal = match txn.txn.end_with_buffered() {
            Ok(written) => match sessions.give(self.now(), session) {
                Ok(manager) => {
                    manager.participant_writes.lock().push(written);
                    return Ok(());
                }
                Err(refusal) => refusal,
            },
            Err(_) => Refusal::Ended(SessionEnd::Aborted),
        };
        drop(sessions);
        Err(NotHandedOver::Over(self.refused(session, refusal)))
    }

    fn not_handed_over(&self, session: &str, not: NotHandedOver) -> Failure {
        let now = self.now();
        let failure = match not {
            NotHandedOver::AsBefore(failure) => {
                self.sessions.lock().commit_not_begun(now, session);
                return failure;
            }
            NotHandedOver::Over(failure) => failure,
        };
        let end = match failure.reason {
            Reason::OutcomeUnknown => SessionEnd::HandOverUnknown,
            Reason::ManagerGone => SessionEnd::ManagerGone,
            _ => SessionEnd::Aborted,
        };
        let ended = self.sessions.lock().finish(now, session, end.clone());
        if let Some(txn) = ended {
            self.roll_back(txn, &end);
        }
        failure
    }

    /// What participants have written is in the transaction of this session then.
    pub(super) fn add_participant_writes(txn: &SessionTxn) -> Result<(), Failure> {
        let all = std::mem::take(&mut *txn.participant_writes.lock());
        for written in all {
            txn.txn.add(written).map_err(|why| match why {
                NotAdded::Failed(error) => Failure::from(error),
                NotAdded::Replaced(table) => replaced(&table),
                NotAdded::Twice(table, row, column) => {
                    let cell = format!("{table}/{}:{}", escape(&row), escape(&column));
                    let message = format!("{cell} was written by two clients of the transaction: nothing of it is committed");
                    Failure::new(Reason::TwoWriters, message).with("cell", cell)
                }
            })?;
        }
        Ok(())
    }
}

/// The reason why a participant has not finished.
enum NotHandedOver {
    /// It may try again.
    AsBefore(Failure),
    /// It has ended with this.
    Over(Failure),
}

impl NotHandedOver {
    /// What the other proxy has answered, or not. `again`: an earlier attempt may have come through.
    fn by(failure: Failure, again: bool) -> Self {
        match (failure.reason.code(), failure.reason) {
            (_, Reason::SessionUnknown) if again => {
                Self::Over(Failure::from(Refusal::Ended(SessionEnd::HandOverUnknown)))
            }
            (_, Reason::SessionUnknown) => {
                Self::Over(Failure::from(Refusal::Ended(SessionEnd::ManagerGone)))
            }
            (_, Reason::SessionBytes) => Self::Over(failure),
            (Code::Unavailable | Code::ResourceExhausted, _) => Self::AsBefore(failure),
            _ => Self::Over(failure),
        }
    }
}

fn replaced(table: &str) -> Failure {
    let message = format!(
        "table {table} was deleted and made again since the transaction began: begin again"
    );
    let failure = Failure::new(Reason::Conflict, message);
    failure.with("conflict", "table").with("table", table)
}

fn in_message(write: BufferedWrite) -> v1::CellWrite {
    v1::CellWrite {
        table: write.table,
        row: write.row,
        column: write.column,
        change: Some(match write.change {
            BufferedChange::Put(value) => Change::Put(value),
            BufferedChange::Delete => Change::Delete(true),
            BufferedChange::Lock => Change::Lock(true),
        }),
    }
}
