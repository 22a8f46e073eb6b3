//! Requests that write: decoded from their messages, and decided by the rules of `protocol`.

use bytes::Bytes;
use percolator_engine::Column;
use percolator_protocol::actions::{Prewrite, StatusQuery};
use percolator_protocol::mutants::{self, Mutant};
use percolator_protocol::safe_point::Points;
use percolator_protocol::types::limits::VALUE_BYTES_MAX;
use percolator_protocol::types::{
    Cell, Chain, LockKind, Mutation, OBSERVED_COLUMN_BYTES_MAX, Timestamp,
};
use percolator_wire::v1;
use percolator_wire::v1::response::Body;

use crate::asked::RequestError;
use crate::commands::TabletCommand;
use crate::decision::{Decision, TabletChange};
use crate::latches::{self, RowHash};
use crate::moves::Move;
use crate::peers::NotServed;
use crate::places::{Place, check_count, check_distinct, places, primary};
use crate::state::State;
use crate::tablets::{self, GcSettingsCopy, Tablets};
use crate::{Refusal, asked, endings, garbage, notify, prewrite, resolve};

/// A request that writes.
#[derive(Debug)]
pub(crate) struct Work {
    tablets: Vec<v1::TabletRef>,
    operation: Operation,
}

#[derive(Debug)]
enum Operation {
    Prewrite {
        txn: Prewrite,
        mutations: Vec<(Place, Mutation)>,
        one_phase: Option<OnePhase>,
    },
    Commit {
        start_ts: Timestamp,
        commit_ts: Timestamp,
        places: Vec<Place>,
    },
    Rollback {
        start_ts: Timestamp,
        places: Vec<Place>,
    },
    CheckStatus(StatusQuery, Place),
    KeepAlive {
        start_ts: Timestamp,
        ttl_ms: u64,
        place: Place,
    },
    RawPut {
        key: Bytes,
        value: Bytes,
    },
    Command(TabletCommand),
    Points(Points),
    Settings(GcSettingsCopy),
    Collect(garbage::Piece),
    Resolve(resolve::Piece),
    Move(Move),
    Observe(Bytes),
    Unobserve {
        column: Bytes,
        from: Option<Cell>,
    },
    Notify {
        at: Timestamp,
        places: Vec<Place>,
    },
}

/// A request to commit in the same step.
#[derive(Debug)]
struct OnePhase {
    commit_ts: Timestamp,
    incarnation: u64,
}

impl Work {
    /// Decodes a request. `Err` returns it if it doesn't write by itself, or is refused.
    pub(crate) fn read(
        tablets: Vec<v1::TabletRef>,
        body: v1::request::Body,
    ) -> Result<Self, RequestError> {
        use v1::request::Body as B;
        let operation = match body {
            B::Prewrite(request) => read_prewrite(request)?,
            B::Commit(request) => {
                let start_ts = timestamp(request.start_ts, "start_ts")?;
                Operation::Commit {
                    start_ts,
                    commit_ts: commit_timestamp(request.commit_ts, start_ts)?,
                    places: places(request.cells)?,
                }
            }
            B::Rollback(request) => Operation::Rollback {
                start_ts: timestamp(request.start_ts, "start_ts")?,
                places: places(request.cells)?,
            },
            B::CheckStatus(request) => read_check_status(request)?,
            B::KeepAlive(request) => Operation::KeepAlive {
                start_ts: timestamp(request.start_ts, "start_ts")?,
                ttl_ms: request.ttl_ms,
                place: primary(request.primary)?,
            },
            B::RawPut(request) if request.key.is_empty() => {
                return Err(invalid("a raw put without a key").into());
            }
            B::RawPut(request) => Operation::RawPut {
                key: request.key,
                value: request.value,
            },
            B::Observe(request) => Operation::Observe(request.column),
            B::Unobserve(request) => Operation::Unobserve {
                column: request.column,
                from: request.from.map(Cell::from),
            },
            B::Notify(request) => Operation::Notify {
                at: notify::weak_at(&request)?,
                places: places(request.cells)?,
            },
            B::Notifications(request) => {
                return Err(RequestError::Notifications(tablets, request));
            }
            B::TakeTablet(request) => {
                let take = request.try_into().map_err(Refusal::from)?;
                Operation::Move(Move::Give(take))
            }
            B::PullTablet(request) => {
                let pull = request.try_into().map_err(Refusal::from)?;
                return Err(RequestError::Pulls(Box::new(pull)));
            }
            B::Resolve(request) => return Err(RequestError::Resolves(tablets, request)),
            B::WaitForCell(request) => return Err(RequestError::Waits(tablets, request)),
            other @ (B::GetOne(_)
            | B::Get(_)
            | B::Scan(_)
            | B::RawGet(_)
            | B::LocksBelow(_)
            | B::Verify(_)) => {
                return Err(RequestError::Reads(tablets, other));
            }
        };
        Ok(Self { tablets, operation })
    }

    /// A command of the master.
    pub(crate) fn command(command: TabletCommand) -> Self {
        Self {
            tablets: Vec::new(),
            operation: Operation::Command(command),
        }
    }

    /// Raises the points.
    pub(crate) fn points(points: Points) -> Self {
        Self {
            tablets: Vec::new(),
            operation: Operation::Points(points),
        }
    }

    /// Resolves locks in this tablet.
    pub(crate) fn resolve(tablet: v1::TabletRef, piece: resolve::Piece) -> Self {
        Self {
            tablets: vec![tablet],
            operation: Operation::Resolve(piece),
        }
    }

    /// Stores settings of garbage collection.
    pub(crate) fn settings(settings: GcSettingsCopy) -> Self {
        Self {
            tablets: Vec::new(),
            operation: Operation::Settings(settings),
        }
    }

    /// Carries out a step of a move.
    pub(crate) fn of_move(step: Move) -> Self {
        Self {
            tablets: Vec::new(),
            operation: Operation::Move(step),
        }
    }

    /// Collects garbage.
    pub(crate) fn collect(piece: garbage::Piece) -> Self {
        Self {
            tablets: Vec::new(),
            operation: Operation::Collect(piece),
        }
    }

    /// Checks that every tablet of the request is served here. Requests that end a transaction, and never as committed, may
    /// also be for a frozen tablet.
    pub(crate) fn served_by(&self, tablets: &Tablets) -> Result<(), NotServed> {
        let decides = matches!(
            self.operation,
            Operation::CheckStatus(..) | Operation::Rollback { .. }
        );
        self.tablets.iter().try_for_each(|asked| {
            if decides {
                tablets.deciding(asked.id, asked.epoch).map(drop)
            } else {
                tablets.serving(asked.id, asked.epoch).map(drop)
            }
        })
    }

    /// The rows to latch, sorted and without duplicates.
    pub(crate) fn rows(&self, tablets: &Tablets) -> Vec<RowHash> {
        let hash = |place: &Place| {
            let table = self
                .tablets
                .get(place.tablet as usize)
                .and_then(|tablet| tablets.get(tablet.id))
                .map_or(0, |tablet| tablet.table.0);
            latches::row(table, &place.row)
        };
        let mut rows: Vec<RowHash> = match &self.operation {
            Operation::Prewrite { mutations, .. } => {
                mutations.iter().map(|(place, _)| hash(place)).collect()
            }
            Operation::Commit { places, .. }
            | Operation::Rollback { places, .. }
            | Operation::Notify { places, .. } => places.iter().map(hash).collect(),
            Operation::Observe(_) | Operation::Unobserve { .. } => {
                let tablets = self.tablets.iter();
                tablets.map(|tablet| latches::tablet(tablet.id)).collect()
            }
            Operation::CheckStatus(_, place) | Operation::KeepAlive { place, .. } => {
                vec![hash(place)]
            }
            Operation::RawPut { .. } => Vec::new(),
            Operation::Command(command) => command.latches(),
            // Points are only raised, so that they need no latch.
            Operation::Points(_) | Operation::Settings(_) => Vec::new(),
            Operation::Collect(piece) => garbage::rows(piece).collect(),
            Operation::Resolve(piece) => piece.rows().collect(),
            Operation::Move(step) => step.latches(),
        };
        rows.sort_unstable();
        rows.dedup();
        rows
    }

    /// Prepares the request to wait for its rows, which may change meanwhile. Copies what it needs of its message, which may be
    /// much larger, and returns the bytes of the copy.
    pub(crate) fn detach(&mut self) -> usize {
        fn copy(bytes: &mut Bytes) -> usize {
            *bytes = Bytes::copy_from_slice(bytes);
            bytes.len()
        }
        let place =
            |place: &mut Place| size_of::<Place>() + copy(&mut place.row) + copy(&mut place.column);
        let held = match &mut self.operation {
            Operation::Prewrite { txn, mutations, .. } => {
                let primary = copy(&mut txn.primary.row) + copy(&mut txn.primary.column);
                let chain = txn.chain.iter_mut().flat_map(|chain| &mut chain.columns);
                let chain = chain.map(|(_, column)| copy(column)).sum::<usize>();
                let mutation = |(at, mutation): &mut (Place, Mutation)| {
                    size_of::<Mutation>() + place(at) + copy(&mut mutation.value)
                };
                primary + chain + mutations.iter_mut().map(mutation).sum::<usize>()
            }
            Operation::Commit { places, .. }
            | Operation::Rollback { places, .. }
            | Operation::Notify { places, .. } => places.iter_mut().map(place).sum(),
            Operation::Observe(column) => copy(column),
            Operation::Unobserve { column, from } => {
                let cell = from.as_mut();
                let cell = cell.map_or(0, |cell| copy(&mut cell.row) + copy(&mut cell.column));
                copy(column) + cell
            }
            Operation::CheckStatus(_, at) | Operation::KeepAlive { place: at, .. } => place(at),
            Operation::RawPut { key, value } => copy(key) + copy(value),
            Operation::Command(_)
            | Operation::Points(_)
            | Operation::Settings(_)
            | Operation::Collect(_)
            | Operation::Move(_) => 0,
            Operation::Resolve(piece) => piece.wait(),
        };
        size_of::<Self>() + held
    }

    /// Whether the request ends something that was begun, and adds nothing: a nearly full disk takes it.
    fn ends_something(&self) -> bool {
        match &self.operation {
            Operation::Commit { .. }
            | Operation::Rollback { .. }
            | Operation::CheckStatus(..)
            | Operation::KeepAlive { .. }
            | Operation::Resolve(_)
            // These free room.
            | Operation::Points(_)
            | Operation::Settings(_)
            | Operation::Collect(_) => true,
            Operation::Command(command) => command.makes_room(),
            // These mark their batches themselves.
            Operation::Prewrite { .. }
            | Operation::RawPut { .. }
            | Operation::Move(_)
            | Operation::Observe(_)
            | Operation::Unobserve { .. }
            | Operation::Notify { .. } => false,
        }
    }

    /// Decides the request, which holds its latches.
    pub(crate) fn decide(self, state: &State) -> Result<Decision, Refusal> {
        let ends_something = self.ends_something();
        let mut decision = self.decide_operation(state)?;
        if ends_something {
            decision.batch.spend_reserve();
        }
        Ok(decision)
    }

    fn decide_operation(self, state: &State) -> Result<Decision, Refusal> {
        let refs = &self.tablets;
        match self.operation {
            Operation::Prewrite {
                txn,
                mutations,
                one_phase,
            } => {
                // The server doesn't know the readers of an earlier incarnation.
                let one_phase = one_phase
                    .filter(|wish| {
                        wish.incarnation == state.me.incarnation
                            || mutants::on(Mutant::OnePhaseOfAnotherLife)
                    })
                    .map(|wish| wish.commit_ts);
                prewrite::decide(state, refs, &txn, mutations, one_phase)
            }
            Operation::Commit {
                start_ts,
                commit_ts,
                places,
            } => endings::commit(state, refs, start_ts, commit_ts, &places),
            Operation::Rollback { start_ts, places } => {
                endings::rollback(state, refs, start_ts, &places)
            }
            Operation::CheckStatus(query, place) => {
                state.lease.admit(query.now)?;
                endings::status(state, &query, &state.cell_to_decide(refs, &place)?)
            }
            Operation::KeepAlive {
                start_ts,
                ttl_ms,
                place,
            } => endings::keep_alive(state, &state.cell(refs, &place)?, start_ts, ttl_ms),
            Operation::RawPut { key, value } => {
                let mut decision = Decision::answered(Body::RawPut(v1::RawPutResponse {}));
                decision
                    .batch
                    .put(Column::Meta, asked::raw_key(&key), value);
                Ok(decision)
            }
            Operation::Command(command) => command.decide(state),
            Operation::Points(points) => {
                let mut decision = Decision::new();
                decision.raise(state.points.highest().raised(points));
                Ok(decision)
            }
            Operation::Settings(settings) => {
                let mut decision = Decision::new();
                decision.batch = tablets::settings_record(settings);
                decision.tablet_change = Some(TabletChange::Keep(settings));
                Ok(decision)
            }
            Operation::Collect(piece) => Ok(garbage::decide(state, piece)?),
            Operation::Resolve(piece) => resolve::decide(state, refs, piece),
            Operation::Move(step) => step.decide(state),
            Operation::Observe(column) => notify::observe(state, refs, column),
            Operation::Unobserve { column, from } => notify::unobserve(state, refs, column, from),
            Operation::Notify { at, places } => notify::weak(state, refs, at, &places),
        }
    }
}

pub(crate) fn commit_timestamp(value: u64, start_ts: Timestamp) -> Result<Timestamp, Refusal> {
    let commit_ts = timestamp(value, "commit_ts")?;
    if commit_ts <= start_ts {
        return Err(invalid(format!(
            "commit_ts {commit_ts} is not above start_ts {start_ts}"
        )));
    }
    Ok(commit_ts)
}

fn read_prewrite(request: v1::PrewriteRequest) -> Result<Operation, Refusal> {
    let txn = Prewrite {
        start_ts: timestamp(request.start_ts, "start_ts")?,
        primary: request
            .primary
            .ok_or_else(|| invalid("a prewrite without a primary"))?
            .into(),
        ttl_ms: request.ttl_ms,
        generation: request.generation,
        chain: read_chain(request.chain)?,
    };
    check_count(request.mutations.len())?;
    let mutations = request
        .mutations
        .into_iter()
        .map(read_mutation)
        .collect::<Result<Vec<_>, Refusal>>()?;
    check_distinct(mutations.iter().map(|(place, _)| place))?;
    Ok(Operation::Prewrite {
        one_phase: request
            .one_phase
            .map(|wish| read_one_phase(&wish, txn.start_ts))
            .transpose()?,
        txn,
        mutations,
    })
}

fn read_check_status(request: v1::CheckStatusRequest) -> Result<Operation, Refusal> {
    let query = StatusQuery {
        start_ts: timestamp(request.start_ts, "start_ts")?,
        now: timestamp(request.now, "now")?,
        push_past: (request.push_past > 0).then(|| Timestamp::from_u64(request.push_past)),
        force: request.force,
        met_ttl_ms: request.met_ttl_ms,
    };
    if query.push_past.is_some_and(|snapshot| snapshot > query.now) {
        return Err(invalid("push_past is above now: no snapshot is"));
    }
    Ok(Operation::CheckStatus(query, primary(request.primary)?))
}

fn read_chain(chain: Option<v1::Chain>) -> Result<Option<Box<Chain>>, Refusal> {
    let chain = chain.map(Chain::try_from).transpose();
    let chain = chain.map_err(|error| invalid(error.to_string()))?;
    if let Some(chain) = &chain
        && let Some((_, column)) = chain
            .columns
            .iter()
            .find(|(_, column)| column.len() > OBSERVED_COLUMN_BYTES_MAX)
    {
        return Err(invalid(format!(
            "a column of a chain is {} bytes long, the limit is {OBSERVED_COLUMN_BYTES_MAX}",
            column.len()
        )));
    }
    Ok(chain.map(Box::new))
}

fn read_one_phase(wish: &v1::OnePhase, start_ts: Timestamp) -> Result<OnePhase, Refusal> {
    Ok(OnePhase {
        commit_ts: commit_timestamp(wish.commit_ts, start_ts)?,
        incarnation: wish.incarnation,
    })
}

fn read_mutation(mutation: v1::Mutation) -> Result<(Place, Mutation), Refusal> {
    let kind = LockKind::try_from(mutation.kind()).map_err(|error| invalid(error.to_string()))?;
    if mutation.value.len() > VALUE_BYTES_MAX {
        return Err(invalid(format!(
            "a value is {} bytes long, the limit is {VALUE_BYTES_MAX}",
            mutation.value.len()
        )));
    }
    let place = Place::from(
        mutation
            .cell
            .ok_or_else(|| invalid("a mutation without a cell"))?,
    );
    let mutation = Mutation {
        cell: Cell::default(),
        kind,
        value: mutation.value,
    };
    Ok((place, mutation))
}

pub(crate) fn timestamp(value: u64, what: &str) -> Result<Timestamp, Refusal> {
    if value == 0 || value == u64::MAX {
        return Err(invalid(format!("{what} is missing or out of range")));
    }
    Ok(Timestamp::from_u64(value))
}

pub(crate) fn invalid(why: impl Into<String>) -> Refusal {
    Refusal::Invalid(why.into())
}
