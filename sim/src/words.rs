//! What processes say to each other, in a few words for the trace: for people, so nothing is shown as the program has
//! it. Every kind of message is named here: one that is new doesn't compile until it has words.

use percolator_client::transport::MasterError;
use percolator_protocol::election::Leadership;
use percolator_protocol::types::TabletState;
use percolator_tablet::core::TabletCommand;
use percolator_wire::v1;
use percolator_wire::v1::commit_response::Result as Committed;
use percolator_wire::v1::request::Body as B;
use percolator_wire::v1::response::Body as R;

use crate::messages::{Answer, Ask};
use crate::servers::register::{RegisterAnswer, RegisterRequest};

/// Cells that are named; of the others it is said how many there are.
const SHOWN: usize = 6;
/// Bytes of a value.
const VALUE_SHOWN: usize = 40;

fn heartbeat(beat: &v1::HeartbeatRequest) -> String {
    if beat.role() == v1::Role::Oracle {
        return format!(
            "heartbeat of {} time={} limit={}",
            beat.server, beat.time, beat.high_ts
        );
    }
    format!(
        "heartbeat of {} groups={} barrier={} safe_point={} all_resolved_ts={} resolved_ts={}",
        beat.server,
        beat.groups,
        beat.barrier,
        beat.safe_point,
        beat.all_resolved_ts,
        beat.resolved_ts
    )
}

/// What a tablet server is to do.
fn tablet_command(command: &TabletCommand) -> String {
    match command {
        TabletCommand::Split {
            id, row, sibling, ..
        } => format!("split tablet {id} at {}, into it and {sibling}", text(row)),
        TabletCommand::Import { tablet, from, .. } => {
            format!("get tablet {} from {}", tablet.id, from.address)
        }
        TabletCommand::Merge { first, second } => {
            format!("merge tablets {} and {}", first.0, second.0)
        }
        TabletCommand::Create { tablet, .. } => {
            let (id, table) = (tablet.id, tablet.table.0);
            format!("own tablet {id} of {table}, {}", state(tablet.state))
        }
        TabletCommand::Drop { id, table } => format!("forget tablet {id} of {table}"),
    }
}

impl Ask {
    /// In a few words.
    pub fn brief(&self) -> String {
        match self {
            Self::Tablet(request) => request.body.as_ref().map_or_else(nothing, asked),
            Self::Timestamps(count) => format!("timestamps {count}"),
            Self::Directory => "directory".to_owned(),
            Self::Locate(request) => {
                let rows = request.rows.iter();
                let rows = rows.map(|row| format!(" {}/{}", row.table_id, text(&row.row)));
                let rows: String = rows.take(SHOWN).collect();
                format!("locate {}{rows}", request.names.join(" "))
            }
            Self::CreateTable(request) => format!("create table {}", request.name),
            Self::DeleteTable(request) => {
                format!("delete table {} ({})", request.name, request.table_id)
            }
            Self::SplitTable(request) => {
                let rows = request.rows.iter().map(|row| text(row));
                let rows: Vec<String> = rows.collect();
                format!("split {} at {}", request.table, rows.join(", "))
            }
            Self::MergeTable(request) => {
                format!("merge {} at {}", request.table, text(&request.row))
            }
            Self::MoveTablet(request) => {
                format!("move tablet {} to {}", request.tablet_id, request.server)
            }
            Self::DrainServers(request) => {
                let what = if request.drain { "drain" } else { "undrain" };
                format!("{what} {}", request.servers.join(" "))
            }
            Self::SetGc(request) => {
                let retention_ms = request.retention_ms.unwrap_or_default();
                format!("set the retention to {retention_ms} ms")
            }
            Self::Session(request) => {
                format!("session {:x} floor={}", request.session, request.floor)
            }
            Self::Heartbeat(beat) => heartbeat(beat),
            Self::Command(command) => tablet_command(&command.command),
            Self::Promise(request) => {
                format!("promise, term {}, limit {}", request.term, request.limit)
            }
            Self::KeepCopy { request, state } => {
                let (which, bytes) = (request.state(), state.len());
                format!(
                    "keep state {} of term {}, {bytes} bytes",
                    which.number, which.term
                )
            }
            Self::Introduce(standby) => format!("{} is a standby", standby.server),
            Self::Register {
                register,
                request: RegisterRequest::Load,
            } => format!("load {register}"),
            Self::Register {
                register,
                request:
                    RegisterRequest::Swap {
                        expected, value, ..
                    },
            } => {
                let expected = expected.map_or_else(nothing, |version| version.to_string());
                format!("swap {register}, expecting {expected}: {}", held(value))
            }
        }
    }
}

/// What a register holds.
fn held(value: &[u8]) -> String {
    match Leadership::decode(value) {
        Ok(value) => {
            let holder = value.holder.as_ref();
            let holder = holder.map_or("nobody", |holder| holder.name.as_str());
            format!("{holder} in term {} up to {}", value.term, value.limit)
        }
        Err(_) => format!("{} bytes", value.len()),
    }
}

fn nothing() -> String {
    "nothing".to_owned()
}

fn state(state: TabletState) -> &'static str {
    match state {
        TabletState::Serving => "serving",
        TabletState::Frozen => "frozen",
    }
}

fn asked(request: &B) -> String {
    match request {
        B::Get(get) => format!(
            "get @{} {}",
            get.start_ts,
            cells(get.cells.iter().map(Some))
        ),
        B::GetOne(get) => format!("get @{} {}", get.start_ts, name(&get.row, &get.column)),
        B::PullTablet(pull) => format!(
            "pull chunk {} of tablet {}",
            pull.chunk,
            pull.tablet.map_or(0, |tablet| tablet.id)
        ),
        B::TakeTablet(take) => {
            format!("take tablet {}", take.tablet.map_or(0, |tablet| tablet.id))
        }
        B::LocksBelow(asked) => format!("locks from below {}", asked.below),
        B::Scan(scan) => format!("scan @{}", scan.start_ts),
        B::Prewrite(prewrite) => {
            let one_phase = prewrite.one_phase.as_ref();
            let one_phase = one_phase.map(|one| format!(" and commit at {}", one.commit_ts));
            format!(
                "prewrite {}{}{} ttl={} {}",
                prewrite.start_ts,
                one_phase.unwrap_or_default(),
                match prewrite.generation {
                    0 => String::new(),
                    generation => format!(" flush {generation}"),
                },
                prewrite.ttl_ms,
                cells(prewrite.mutations.iter().map(|m| m.cell.as_ref()))
            )
        }
        B::Commit(commit) => format!(
            "commit {} at {} {}",
            commit.start_ts,
            commit.commit_ts,
            cells(commit.cells.iter().map(Some))
        ),
        B::Rollback(rollback) => format!(
            "rollback {} {}",
            rollback.start_ts,
            cells(rollback.cells.iter().map(Some))
        ),
        B::CheckStatus(check) => format!(
            "check_status {} now={} push_past={} force={} {}",
            check.start_ts,
            check.now,
            check.push_past,
            check.force,
            cells(std::iter::once(check.primary.as_ref()))
        ),
        B::Resolve(resolve) => match resolve.commit_ts {
            0 => format!("resolve {} rolled back", resolve.start_ts),
            at => format!("resolve {} committed at {at}", resolve.start_ts),
        },
        B::KeepAlive(keep) => format!("keep_alive {} ttl={}", keep.start_ts, keep.ttl_ms),
        B::WaitForCell(wait) => format!(
            "wait_for_cell {} {}",
            wait.waiter,
            cells(wait.cell.iter().map(Some))
        ),
        B::Observe(observe) => format!("observe {}", text(&observe.column)),
        B::Unobserve(observe) => format!("unobserve {}", text(&observe.column)),
        B::Notifications(asked) => format!("notifications of {}", text(&asked.column)),
        B::Notify(notify) => format!(
            "notify at {} {}",
            notify.at,
            cells(notify.cells.iter().map(Some))
        ),
        B::Verify(_) => "verify".to_owned(),
        B::RawGet(get) => format!("raw get {}", text(&get.key)),
        B::RawPut(put) => format!("raw put {}", text(&put.key)),
    }
}

impl Answer {
    /// In a few words.
    pub fn brief(&self) -> String {
        match self {
            Self::Tablet(response) => response.body.as_ref().map_or_else(nothing, answered),
            Self::Timestamps(granted) => format!("timestamp {}", granted.first),
            Self::NotLeader(Some(leader)) => {
                format!(
                    "{} leads, silent for {} ms",
                    leader.address, leader.silent_ms
                )
            }
            Self::NotLeader(None) => "another one leads".to_owned(),
            Self::Promised(true) => "promised".to_owned(),
            Self::Promised(false) => "not promised".to_owned(),
            Self::Register(RegisterAnswer::Loaded(None)) => "no value".to_owned(),
            Self::Register(RegisterAnswer::Loaded(Some(found))) => {
                format!("version {}: {}", found.version, held(&found.value))
            }
            Self::Register(RegisterAnswer::Swapped(version)) => format!("swapped: {version}"),
            Self::Register(RegisterAnswer::Conflict(_)) => "conflict".to_owned(),
            Self::Register(RegisterAnswer::Unavailable) => "not now".to_owned(),
            Self::Directory(directory) => format!("{} tablets", directory.tablets.len()),
            Self::Located(located) => format!("{} tablets", located.tablets.len()),
            Self::TableCreated(_) => "created".to_owned(),
            Self::TableDeleted(_) => "deleted".to_owned(),
            Self::TableSplit(_) => "split".to_owned(),
            Self::TableMerged(_) => "merged".to_owned(),
            Self::TabletMoved(_) => "moved".to_owned(),
            Self::ServersDrained(_) | Self::GcSet(_) => "set".to_owned(),
            Self::Session(told) => format!("lease {} ms barrier={}", told.lease_ms, told.barrier),
            Self::Heartbeat(told) => {
                format!(
                    "heard, barrier={} safe_point={} resolved_ts={} commits_above={} timestamps_above={}",
                    told.barrier,
                    told.safe_point,
                    told.resolved_ts,
                    told.commits_above,
                    told.timestamps_above
                )
            }
            Self::Done(Ok(_)) => "done".to_owned(),
            Self::Done(Err(why)) => format!("not done: {why}"),
            Self::Refused(MasterError::Unavailable(why)) => format!("not now: {why}"),
            Self::Refused(MasterError::Replaced(replaced)) => replaced.to_string(),
            Self::Refused(
                MasterError::Invalid(why)
                | MasterError::AlreadyExists(why)
                | MasterError::NotFound(why),
            ) => format!("refused: {why}"),
        }
    }
}

fn notifications(found: &v1::NotificationsResponse) -> String {
    let rows = found.notifications.iter();
    let rows = rows.map(|it| format!("{}@{}", text(&it.row), it.changed_at));
    format!("notifications {}", rows.collect::<Vec<_>>().join(", "))
}

#[expect(clippy::too_many_lines, reason = "one line a kind of response")]
fn answered(response: &R) -> String {
    match response {
        R::Get(get) => {
            let results = get.results.iter().map(|result| match &result.result {
                Some(v1::get_result::Result::Found(found)) => text(&found.value),
                Some(v1::get_result::Result::Locked(lock)) => {
                    format!("locked by {}", lock.start_ts)
                }
                Some(v1::get_result::Result::RolledBack(_)) => "rolled back".to_owned(),
                Some(v1::get_result::Result::Absent(_)) | None => "-".to_owned(),
            });
            format!("got {}", results.collect::<Vec<_>>().join(", "))
        }
        R::GetOne(got) => match (&got.value, &got.locked) {
            (Some(value), _) => format!("got {}", text(value)),
            (None, Some(lock)) => format!("got locked by {}", lock.start_ts),
            (None, None) => "got -".to_owned(),
        },
        R::PullTablet(chunk) if !chunk.over.is_empty() => format!("over: {}", chunk.over),
        R::PullTablet(chunk) => {
            let last = if chunk.last { ", the last" } else { "" };
            format!("a chunk of {}{last}", chunk.entries.len())
        }
        R::TakeTablet(answer) => format!("{:?}", answer.taken()),
        R::LocksBelow(found) => {
            let more = found.resume.as_ref().map_or("", |_| ", maybe more");
            format!("{} locks{more}", found.locks.len())
        }
        R::Resolve(resolved) => {
            let more = resolved.resume.as_ref().map_or("", |_| ", maybe more");
            format!("{} resolved{more}", resolved.resolved)
        }
        R::Scan(scan) if scan.rolled_back.is_some() => "rolled back".to_owned(),
        R::Scan(scan) => format!("{} cells, {} locked", scan.cells.len(), scan.locked.len()),
        R::Prewrite(prewrite) if prewrite.rejections.is_empty() => {
            if prewrite.committed {
                "committed in one phase".to_owned()
            } else {
                "prewritten".to_owned()
            }
        }
        R::Prewrite(prewrite) => {
            let reasons = prewrite.rejections.iter().map(rejection);
            format!("rejected: {}", reasons.collect::<Vec<_>>().join(", "))
        }
        R::Commit(commit) => match &commit.result {
            Some(Committed::Done(_)) => "committed".to_owned(),
            Some(Committed::LockMissing(missing)) if missing.rolled_back => {
                "not committed: it was rolled back".to_owned()
            }
            Some(Committed::LockMissing(_)) => "not committed: its lock is gone".to_owned(),
            Some(Committed::TooLow(low)) => {
                format!("not committed: not below {}", low.min_commit_ts)
            }
            Some(Committed::Taken(taken)) => {
                format!("not committed: {} is there", taken.by_start_ts)
            }
            None => nothing(),
        },
        R::Rollback(rollback) => match &rollback.committed {
            Some(committed) => format!("not rolled back: committed at {}", committed.commit_ts),
            None => "rolled back".to_owned(),
        },
        R::CheckStatus(status) => status.status.as_ref().map_or_else(nothing, fate),
        R::KeepAlive(alive) if alive.alive => format!("alive ttl={}", alive.ttl_ms),
        R::KeepAlive(_) => "not alive".to_owned(),
        R::RawGet(got) => got.value.as_ref().map_or_else(
            || "got -".to_owned(),
            |value| format!("got {}", text(value)),
        ),
        R::Verify(verified) => format!("{} findings", verified.findings.len()),
        R::RawPut(_) => "put".to_owned(),
        R::Observe(_) => "observed".to_owned(),
        R::Unobserve(_) => "unobserved".to_owned(),
        R::Notify(_) => "notified".to_owned(),
        R::Notifications(found) => notifications(found),
        R::WaitForCell(waited) if waited.granted => "granted".to_owned(),
        R::WaitForCell(_) => "not granted".to_owned(),
        R::Error(error) => refusal(error),
    }
}

fn rejection(rejection: &v1::PrewriteRejection) -> String {
    use v1::prewrite_rejection::Reason;
    match &rejection.reason {
        Some(Reason::Locked(lock)) => format!("locked by {}", lock.start_ts),
        Some(Reason::Conflict(with)) => format!(
            "{} committed at {}",
            with.with_start_ts, with.with_commit_ts
        ),
        Some(Reason::RolledBack(_)) => "it was rolled back".to_owned(),
        Some(Reason::NotNotified(not)) => format!("nothing waits, changed at {}", not.changed_at),
        Some(Reason::Committed(at)) => format!("it is committed at {}", at.commit_ts),
        None => nothing(),
    }
}

fn fate(status: &v1::check_status_response::Status) -> String {
    use v1::check_status_response::Status;
    match status {
        Status::Committed(at) => format!("it is committed at {}", at.commit_ts),
        Status::RolledBack(_) => "it is rolled back".to_owned(),
        Status::Alive(alive) => {
            let committing = if alive.committing { ", committing" } else { "" };
            format!(
                "it is alive, min_commit_ts={}{committing}",
                alive.min_commit_ts
            )
        }
        Status::Pending(_) => "its primary may yet be prewritten".to_owned(),
    }
}

/// Why a tablet server does nothing.
pub(crate) fn refusal(error: &v1::RequestError) -> String {
    use v1::request_error::Kind;
    match &error.kind {
        Some(Kind::Busy(why)) => format!("busy: {why}"),
        Some(Kind::TooOld(old)) => {
            format!(
                "{} is too old: the barrier is {}",
                old.start_ts, old.barrier
            )
        }
        Some(Kind::NotServed(not)) => {
            let frozen = if not.frozen { ", frozen" } else { "" };
            format!(
                "tablet {} is not served at epoch {}, known is {}{frozen}",
                not.tablet_id, not.asked_epoch, not.known_epoch
            )
        }
        Some(Kind::NotLeased(not)) => {
            format!("{} is above the lease, {}", not.asked, not.lease)
        }
        Some(Kind::Invalid(why)) => format!("invalid: {why}"),
        Some(Kind::Failed(failed)) => {
            let unknown = if failed.unknown { ", maybe done" } else { "" };
            format!("failed{unknown}: {}", failed.message)
        }
        Some(Kind::OtherServer(other)) => {
            let name = |whom: &Option<v1::Addressee>| {
                let whom = whom.as_ref();
                whom.map_or_else(nothing, |whom| {
                    format!("{} {:x}", whom.server, whom.incarnation)
                })
            };
            format!(
                "meant for {}, and this is {}",
                name(&other.meant),
                name(&other.answers)
            )
        }
        None => nothing(),
    }
}

fn name(row: &[u8], column: &[u8]) -> String {
    let (row, column) = (
        percolator_client::escape(row),
        percolator_client::escape(column),
    );
    format!("{row}:{column}")
}

fn cells<'a>(cells: impl Iterator<Item = Option<&'a v1::CellRef>>) -> String {
    let mut names: Vec<String> = cells
        .flatten()
        .map(|cell| name(&cell.row, &cell.column))
        .collect();
    let more = names.len().saturating_sub(SHOWN);
    names.truncate(SHOWN);
    if more > 0 {
        names.push(format!("and {more} more"));
    }
    names.join(" ")
}

fn text(value: &[u8]) -> String {
    let text = percolator_client::escape(&value[..value.len().min(VALUE_SHOWN)]);
    text.to_string()
}
