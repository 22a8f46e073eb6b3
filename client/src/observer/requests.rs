//! What is asked of tablets about observed columns.

use std::collections::BTreeSet;
use std::time::Duration;

use bytes::Bytes;
use percolator_protocol::types::{Cell, Chain, TableId, Timestamp};
use percolator_wire::v1::request::Body as Ask;
use percolator_wire::v1::response::Body;
use percolator_wire::{Malformed, v1};

use super::Change;
use crate::attempts::Attempt;
use crate::location_cache::{RowQuery, TabletTarget};
use crate::resolver::{malformed, unexpected};
use crate::retry::{Retry, RetryCause};
use crate::router::{CallError, Deadline, Router};
use crate::{Client, Error};

/// Which notifications are asked for.
#[derive(Clone, Copy, Debug)]
pub struct NotificationQuery {
    /// The most of each tablet.
    pub limit: u32,
    /// They aren't given to others for so long; zero: they are.
    pub lease: Duration,
}

/// What waits for observers of a column.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ObservedStatus {
    /// Changes that no observer has acknowledged.
    pub waiting: u64,
    /// Cells of the column that are locked, at least: they may be about to change.
    pub locked: u64,
    /// When the cell changed whose change waits the longest.
    pub oldest: Option<Timestamp>,
    /// The oracle's time.
    pub now: Timestamp,
}

impl ObservedStatus {
    /// Whether nothing waits, and nothing was about to.
    pub fn is_idle(&self) -> bool {
        self.waiting == 0 && self.locked == 0
    }

    /// How long the oldest change has waited.
    pub fn lag(&self) -> Duration {
        let oldest = self.oldest.unwrap_or(self.now).physical_ms();
        Duration::from_millis(self.now.physical_ms().saturating_sub(oldest))
    }
}

impl Client {
    /// Observes a column of a table: from now on each commit that changes one of its cells leaves a notification, for an
    /// [`Observer`](super::Observer). Cells that are there already leave none. Harmless when repeated.
    ///
    /// # Errors
    /// [`Error::UnknownTable`], [`Error::Invalid`], [`Error::Timeout`]: some tablets may have it, so that it has to be
    /// repeated.
    pub async fn observe(&self, table: &str, column: impl AsRef<[u8]>) -> Result<(), Error> {
        let column = Bytes::copy_from_slice(column.as_ref());
        let ask = |_: Option<&v1::CellName>| {
            Ask::Observe(v1::ObserveRequest {
                column: column.clone(),
            })
        };
        self.at_all_tablets(table, "observing a column", &ask, |body| match body {
            Body::Observe(_) => Ok(None),
            _ => Err(unexpected()),
        })
        .await
    }

    /// Observes a column no more: commits leave no notifications, and those that wait are removed. A run that has begun does
    /// not commit any more, as its change doesn't wait. False: it was not observed. Harmless when repeated.
    ///
    /// Tablets may be merged meanwhile with others that have the column still: they are asked again until none has it.
    ///
    /// # Errors
    /// As [`Self::observe`].
    pub async fn unobserve(&self, table: &str, column: impl AsRef<[u8]>) -> Result<bool, Error> {
        let column = Bytes::copy_from_slice(column.as_ref());
        let ask = |from: Option<&v1::CellName>| {
            Ask::Unobserve(v1::UnobserveRequest {
                column: column.clone(),
                from: from.cloned(),
            })
        };
        let mut was_observed = false;
        let mut found_none = false;
        loop {
            let mut more = false;
            self.at_all_tablets(table, "unobserving a column", &ask, |body| {
                let Body::Unobserve(answer) = body else {
                    return Err(unexpected());
                };
                was_observed |= answer.was_observed;
                more |= answer.more;
                Ok(answer.resume)
            })
            .await?;
            // Commits that were decided before the column was given up may have become durable since that request was carried out.
            if !more && found_none {
                return Ok(was_observed);
            }
            found_none = !more;
        }
    }

    /// Changes of an observed column that no observer has acknowledged, some of each tablet, without their values: for anyone
    /// who runs observers in a loop of their own. A transaction that begins afterwards reads the cell and acknowledges the
    /// change by [`Txn::acknowledge`](crate::Txn::acknowledge).
    ///
    /// # Errors
    /// As [`Self::observe`].
    pub async fn notifications(
        &self,
        table: &str,
        column: impl AsRef<[u8]>,
        query: NotificationQuery,
    ) -> Result<Vec<Change>, Error> {
        let column = Bytes::copy_from_slice(column.as_ref());
        let ask = |_: Option<&v1::CellName>| {
            Ask::Notifications(v1::NotificationsRequest {
                column: column.clone(),
                limit: query.limit,
                lease_ms: millis(query.lease),
                ..v1::NotificationsRequest::default()
            })
        };
        let mut changes = Vec::new();
        self.at_all_tablets(table, "looking for notifications", &ask, |body| {
            let Body::Notifications(found) = body else {
                return Err(unexpected());
            };
            for info in found.notifications {
                let change = WaitingChange::try_from(info).map_err(malformed)?;
                changes.push(Change {
                    table: table.to_owned(),
                    row: change.row,
                    column: column.clone(),
                    value: None,
                    changed_at: change.changed_at,
                    values_before: 0,
                    chain: change.chain,
                });
            }
            Ok(None)
        })
        .await?;
        Ok(changes)
    }

    /// The observed columns of a table, in order.
    ///
    /// # Errors
    /// [`Error::UnknownTable`], [`Error::Timeout`].
    pub async fn observed_columns(&self, table: &str) -> Result<Vec<Bytes>, Error> {
        let ask = |_: Option<&v1::CellName>| {
            Ask::Notifications(v1::NotificationsRequest {
                columns: true,
                ..v1::NotificationsRequest::default()
            })
        };
        let mut columns = BTreeSet::new();
        self.at_all_tablets(table, "asking for observed columns", &ask, |body| {
            let Body::Notifications(found) = body else {
                return Err(unexpected());
            };
            columns.extend(found.observed_columns);
            Ok(None)
        })
        .await?;
        Ok(columns.into_iter().collect())
    }

    /// What waits for observers of a column.
    ///
    /// # Errors
    /// As [`Self::observe`]; [`Error::Invalid`]: it is not observed.
    pub async fn observed(
        &self,
        table: &str,
        column: impl AsRef<[u8]>,
    ) -> Result<ObservedStatus, Error> {
        let column = Bytes::copy_from_slice(column.as_ref());
        let ask = |from: Option<&v1::CellName>| {
            Ask::Notifications(v1::NotificationsRequest {
                column: column.clone(),
                count: true,
                from: from.cloned(),
                ..v1::NotificationsRequest::default()
            })
        };
        let mut status = ObservedStatus {
            now: self.timestamp().await?,
            ..ObservedStatus::default()
        };
        self.at_all_tablets(table, "counting notifications", &ask, |body| {
            let Body::Notifications(found) = body else {
                return Err(unexpected());
            };
            status.waiting += found.waiting;
            status.locked += found.locked;
            let oldest = (found.oldest > 0).then(|| Timestamp::from_u64(found.oldest));
            status.oldest = status.oldest.into_iter().chain(oldest).min();
            Ok(found.resume)
        })
        .await?;
        Ok(status)
    }

    /// Leaves a weak notification of each of these cells, as if it had changed: observers run for it, and see what it holds. No
    /// transaction is made for that, and none conflicts with it.
    ///
    /// # Errors
    /// [`Error::UnknownTable`], [`Error::Timeout`]; [`Error::Invalid`]: the column is not observed.
    pub async fn notify(
        &self,
        table: &str,
        column: impl AsRef<[u8]>,
        rows: &[Bytes],
    ) -> Result<(), Error> {
        let at = self.timestamp().await?;
        let request_timeout = self.options().request_timeout;
        let deadline = self.router.deadline(request_timeout);
        let table = self.router.table(table, request_timeout).await?;
        let column = Bytes::copy_from_slice(column.as_ref());
        let cell = |at: usize| Cell::new(table, rows[at].clone(), column.clone());
        let build = |cells: Vec<(usize, v1::CellRef)>| {
            Ask::Notify(v1::NotifyRequest {
                cells: cells.into_iter().map(|(_, cell)| cell).collect(),
                at: at.as_u64(),
            })
        };
        let indices = (0..rows.len()).collect();
        let answers = self.router.call(&cell, indices, &|_| 0, &build, deadline);
        for (_, answer) in answers.await {
            let transport = &*self.router.world.transport;
            answer.map_err(|error| deadline.error(transport, "notifying observers", error))?;
        }
        Ok(())
    }

    /// Asks each tablet of a table, one after the other; the same one again, from a cell on, as long as `take` names one.
    async fn at_all_tablets(
        &self,
        table: &str,
        doing: &'static str,
        ask: &(dyn Fn(Option<&v1::CellName>) -> Ask + Sync),
        mut take: impl FnMut(Body) -> Result<Option<v1::CellName>, CallError>,
    ) -> Result<(), Error> {
        let request_timeout = self.options().request_timeout;
        let table = self.router.table(table, request_timeout).await?;
        let (mut row, mut from) = (Bytes::new(), None);
        loop {
            let ask = |_: &TabletTarget| ask(from.as_ref());
            let deadline = self.router.deadline(request_timeout);
            let failed = |error| deadline.error(&*self.router.world.transport, doing, error);
            let asked = self.router.ask_tablet(table, &row, &ask, deadline).await;
            let (tablet, body) = asked.map_err(failed)?;
            from = take(body).map_err(failed)?;
            // A piece further on may be another tablet's by then.
            row = match &from {
                Some(cell) => cell.row.clone(),
                None if tablet.end_row.is_empty() => return Ok(()),
                None => tablet.end_row,
            };
        }
    }
}

impl Router {
    /// Asks the tablet that has this row until it has answered.
    pub(crate) async fn ask_tablet(
        &self,
        table: TableId,
        row: &Bytes,
        ask: &(dyn Fn(&TabletTarget) -> Ask + Sync),
        deadline: Deadline,
    ) -> Result<(TabletTarget, Body), CallError> {
        let wanted = RowQuery::of(table, row);
        let mut retry = Retry::new(self, deadline);
        loop {
            let attempt = match self.place(&wanted, deadline).await {
                Ok(tablet) => match self.send_to(&tablet, ask(&tablet), deadline).await {
                    Attempt::Done(body) => return Ok((tablet, body)),
                    attempt => attempt,
                },
                Err(no_place) => Attempt::Again(no_place.0),
            };
            let last = match attempt {
                Attempt::Invalid(why) => return Err(CallError::Invalid(why)),
                Attempt::TooOld(too_old) => return Err(CallError::TooOld(too_old)),
                Attempt::Frozen(_) => return Err(CallError::BeingDeleted(table)),
                other => RetryCause::from(other),
            };
            retry.pause_and_locate(last, vec![wanted.clone()]).await?;
            if self.locations().deleted(table) {
                return Err(CallError::Deleted(table));
            }
        }
    }

    /// Sends a request about one tablet to its server, once.
    pub(crate) async fn send_to(
        &self,
        tablet: &TabletTarget,
        ask: Ask,
        deadline: Deadline,
    ) -> Attempt {
        let refs = vec![v1::TabletRef {
            id: tablet.id,
            epoch: tablet.epoch,
        }];
        self.send(&tablet.address, refs, ask, deadline).await
    }
}

/// A change that waits for an observer, as a tablet server sends it.
#[derive(Clone, Debug)]
pub(super) struct WaitingChange {
    pub(super) row: Bytes,
    /// When the cell changed last.
    pub(super) changed_at: Timestamp,
    /// When the first of the changes was made that wait, at the earliest.
    pub(super) first_at: Timestamp,
    /// The runs that the change comes from; of several changes the longest.
    pub(super) chain: Chain,
}

impl TryFrom<v1::NotificationInfo> for WaitingChange {
    type Error = Malformed;

    fn try_from(info: v1::NotificationInfo) -> Result<Self, Malformed> {
        Ok(Self {
            row: info.row,
            changed_at: Timestamp::from_u64(info.changed_at),
            first_at: Timestamp::from_u64(info.first_at),
            // There is none of a change that no observer's run made.
            chain: info
                .chain
                .map_or_else(|| Ok(Chain::default()), Chain::try_from)?,
        })
    }
}

/// For a message.
pub(super) fn millis(duration: Duration) -> u32 {
    u32::try_from(duration.as_millis()).unwrap_or(u32::MAX)
}
