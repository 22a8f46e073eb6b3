//! Durability, in one place for every store: a write-ahead log in front of it.
//!
//! A group is on the device, in the log, before it is applied to the store. The store itself is brought
//! onto the device by checkpoints, after which older segments of the log go. What a crash takes from
//! the store, the next open replays: puts and deletes in order, so that doing some of them twice
//! changes nothing.

use std::{
    cell::Cell,
    ops::ControlFlow,
    path::Path,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};

use parking_lot::{Condvar, Mutex};

use crate::{
    Batch, Column, Direction, Engine, Error, Key, Options, Read, Scan, Snapshot, Stats, Value,
    backend::{Backend, Checkpoint, Step, StepHook},
    disk::Disk,
    engine::check_group,
    folder::Folder,
    log::{AppendError, Log, LogStats, Reserve, RotateError, remove_through, replay},
};

/// A checkpoint that found no room is tried again after this, or when a segment of the log is full.
const RETRY: Duration = Duration::from_secs(1);
/// A checkpoint in the background rests this many times as long as it works, with all the time in the world: it has a
/// twelfth of a processor and of the device then.
const RESTS: f64 = 11.0;
/// At a time no longer than this, however long a disk took for a step.
const REST_MAX: Duration = Duration::from_millis(100);
/// The preparation of segments pauses less: they are needed sooner.
const PREPARING_RESTS: u32 = 2;
/// How much less a processor is the checkpoint's than that of those who answer requests, as nice(2) counts.
const CHECKPOINT_NICE: i32 = 10;
/// So much of the log is replayed into memory at most, in segments, before a checkpoint.
const REPLAYED_SEGMENTS: u64 = 2;
/// For so long a close brings the store up to date. What is left, the next open replays from the log.
const CLOSING_MAX: Duration = Duration::from_secs(2);

/// The place in which checkpoints are made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Checkpoints {
    /// In a thread of their own: commits go on meanwhile.
    Background,
    /// In the commit that filled a segment, and in those that follow where it takes more than these steps: for the simulator,
    /// which has one thread.
    Inline {
        /// In one commit.
        steps: u32,
    },
}

impl Checkpoints {
    /// In the commit that filled a segment, however many steps that takes.
    pub const AT_ONCE: Self = Self::Inline { steps: u32::MAX };
}

/// A store behind a write-ahead log.
pub struct Durable<B: Backend> {
    shared: Arc<Shared<B>>,
    checkpointer: Option<JoinHandle<()>>,
    /// Held until the engine and the store are gone.
    _folder: Option<Folder>,
}

struct Shared<B> {
    backend: B,
    disk: Arc<dyn Disk>,
    log: Mutex<Log>,
    /// As the last commit has left it: anyone who asks doesn't wait for a disk that hangs.
    log_was: Mutex<LogStats>,
    segment_bytes: u64,
    /// The reason of its stop: the first failure that left something unknown.
    poison: OnceLock<String>,
    closed: AtomicBool,
    /// Steps of checkpoints.
    steps: AtomicU64,
    /// The last group found no room: a checkpoint may make some, and takes no time to rest.
    short_of_room: AtomicBool,
    requests: Mutex<CheckpointerRequests>,
    changed: Condvar,
    checkpoints: Checkpoints,
    /// Held during a checkpoint that is made without holding the log, and locked before it.
    checkpointing: Mutex<()>,
}

/// Requests to the checkpointer.
#[derive(Default)]
struct CheckpointerRequests {
    /// Make a checkpoint, then remove the segments up to this one.
    through: Option<u64>,
    stop: bool,
}

impl<B: Backend> Durable<B> {
    /// Replays the log on `disk` into `backend` and goes on from there. `path` names the log in
    /// messages. Of the options, `segment_bytes` and the two reserves count here.
    pub fn open(
        disk: Arc<dyn Disk>,
        path: &Path,
        backend: B,
        options: &Options,
        checkpoints: Checkpoints,
    ) -> Result<Durable<B>, Error> {
        // What is replayed is in memory until a checkpoint: a log may have grown over many starts that were soon killed.
        let mut since_checkpoint = 0;
        let may_go = |bytes| {
            since_checkpoint += bytes;
            if since_checkpoint < REPLAYED_SEGMENTS * options.segment_bytes {
                return Ok(false);
            }
            since_checkpoint = 0;
            match backend.checkpoint(&|_| ControlFlow::Continue(())) {
                Ok(made) => Ok(made == Checkpoint::Durable),
                Err(Error::Full { .. }) => Ok(false),
                Err(error) => Err(error),
            }
        };
        let replayed = replay(&*disk, path, |group| backend.apply(group), may_go)?;
        let next = replayed.next;
        // Without it the segment is as good, and slower.
        let _ = disk.prepare(options.segment_bytes, None);
        let torn_bytes = replayed.torn_bytes;
        let mut log = Log::start(
            Arc::clone(&disk),
            path,
            next,
            replayed.segments,
            Reserve {
                bytes: options.reserve_bytes,
                last_bytes: options.last_reserve_bytes.min(options.reserve_bytes),
            },
        )?;
        log.torn_bytes = torn_bytes;
        let older = log.last_older();
        let shared = Arc::new(Shared {
            backend,
            disk,
            log_was: Mutex::new(log.stats()),
            log: Mutex::new(log),
            segment_bytes: options.segment_bytes,
            poison: OnceLock::new(),
            closed: AtomicBool::new(false),
            steps: AtomicU64::new(0),
            short_of_room: AtomicBool::new(false),
            requests: Mutex::new(CheckpointerRequests::default()),
            changed: Condvar::new(),
            checkpoints,
            checkpointing: Mutex::new(()),
        });
        let checkpointer = match checkpoints {
            Checkpoints::Inline { .. } => None,
            Checkpoints::Background => {
                let shared = Arc::clone(&shared);
                let thread = std::thread::Builder::new()
                    .name("checkpoint".to_owned())
                    .spawn(move || {
                        // Anyone who waits for an answer goes first; who can't set it has no less.
                        let _ = rustix::process::nice(CHECKPOINT_NICE);
                        shared.checkpoint_when_asked();
                    })
                    .map_err(Error::io("start the checkpoint thread for", path))?;
                Some(thread)
            }
        };
        let engine = Durable {
            shared,
            checkpointer,
            _folder: None,
        };
        if let Some(older) = older {
            engine.shared.ask_for_checkpoint(older)?;
        }
        Ok(engine)
    }

    /// The same, which holds its folder.
    pub(crate) fn with_folder(mut self, folder: Folder) -> Self {
        self._folder = Some(folder);
        self
    }
}

impl<B: Backend> Shared<B> {
    fn check(&self) -> Result<(), Error> {
        match self.poison.get() {
            Some(cause) => Err(Error::Poisoned {
                cause: cause.clone(),
            }),
            None => Ok(()),
        }
    }

    /// Stops the engine; only the first cause is kept.
    fn stop(&self, cause: String) -> String {
        self.poison.get_or_init(|| cause).clone()
    }

    fn commit(&self, group: &[Batch]) -> Result<(), Error> {
        if check_group(group)? == 0 {
            return Ok(());
        }
        let mut log = self.log.lock();
        self.check()?;
        if self.closed.load(Ordering::Acquire) {
            return Err(Error::Closed);
        }
        match log.append(group) {
            Ok(()) => {
                self.short_of_room.store(false, Ordering::Relaxed);
                *self.log_was.lock() = log.stats();
            }
            Err(AppendError::Refused(error)) => {
                let is_full = matches!(error, Error::Full { .. });
                // A pausing checkpoint is notified once: one that has found no room isn't tried with each refusal.
                if is_full && !self.short_of_room.swap(true, Ordering::Relaxed) {
                    self.changed.notify_all();
                }
                // The log may be what fills the disk. Not for a little of it: groups that may spend the reserve go
                // on in between, and a file for each of them would fill it.
                let much = log.len() >= self.segment_bytes / 16 && log.len() > 0;
                if is_full && much {
                    self.next_segment(&mut log)?;
                }
                return Err(error);
            }
            Err(AppendError::Unknown(cause)) => {
                let cause = self.stop(cause);
                return Err(Error::Poisoned { cause });
            }
        }
        if let Err(error) = self.backend.apply(group) {
            let cause = self.stop(error.to_string());
            return Err(Error::DurableButStopped { cause });
        }
        if log.len() >= self.segment_bytes {
            self.next_segment(&mut log)?;
        } else if let Checkpoints::Inline { steps } = self.checkpoints {
            let waiting = self.requests.lock().through;
            if let Some(through) = waiting {
                self.checkpoint_inline(&mut log, through, steps);
            }
        }
        Ok(())
    }

    /// Makes a checkpoint, or the next steps of one. The group is durable and visible: if the store fails now, later
    /// commits report it. Without room, the checkpoint is tried again with the next commit.
    fn checkpoint_inline(&self, log: &mut Log, through: u64, steps: u32) {
        let left = Cell::new(steps);
        let rest = |_| {
            left.set(left.get().saturating_sub(1));
            if left.get() == 0 {
                ControlFlow::Break(())
            } else {
                ControlFlow::Continue(())
            }
        };
        let made = self.checkpoint(through, &rest, |last| log.forget_through(last));
        let waits = matches!(made, Err(Error::Full { .. }) | Ok(Checkpoint::BrokenOff));
        self.requests.lock().through = waits.then_some(through);
    }

    /// Starts a new segment and asks for a checkpoint that frees those before it.
    fn next_segment(&self, log: &mut Log) -> Result<(), Error> {
        match log.rotate() {
            Ok(last) => {
                if let Checkpoints::Inline { steps } = self.checkpoints {
                    self.checkpoint_inline(log, last, steps);
                } else {
                    self.requests.lock().through = Some(last);
                    self.changed.notify_all();
                }
                Ok(())
            }
            // It goes on in the old segment, and tries again with the next group.
            Err(RotateError::NoRoom) => Ok(()),
            Err(RotateError::Failed(error)) => {
                self.stop(format!("cannot start a segment of the log: {error}"));
                Ok(())
            }
        }
    }

    fn ask_for_checkpoint(&self, through: u64) -> Result<(), Error> {
        match self.checkpoints {
            Checkpoints::Inline { steps } => {
                self.checkpoint_inline(&mut self.log.lock(), through, steps);
                self.check()
            }
            Checkpoints::Background => {
                self.requests.lock().through = Some(through);
                self.changed.notify_all();
                Ok(())
            }
        }
    }

    /// Brings the store onto the device, then removes the segments up to `through`.
    fn checkpoint(
        &self,
        through: u64,
        rest: StepHook<'_>,
        forget: impl FnOnce(u64),
    ) -> Result<Checkpoint, Error> {
        self.check()?;
        let made = self.backend.checkpoint(rest).and_then(|made| {
            if made == Checkpoint::Durable {
                remove_through(&*self.disk, through)
                    .map_err(Error::io("remove segments of", "the log"))?;
                forget(through);
            }
            Ok(made)
        });
        // A store that can't be synced is as bad as a log that can't. One that has no room and says so before
        // it writes is as it was, and the log still holds everything.
        made.inspect_err(|error| {
            if !matches!(error, Error::Full { .. }) {
                self.stop(format!("no checkpoint: {error}"));
            }
        })
    }

    fn checkpoint_beside_commits(
        &self,
        through: u64,
        rest: StepHook<'_>,
    ) -> Result<Checkpoint, Error> {
        let _one = self.checkpointing.lock();
        self.checkpoint(through, rest, |last| self.log.lock().forget_through(last))
    }

    /// Between two steps of a checkpoint in the background, which doesn't go on when the engine is closed.
    fn rest(&self, step: Step) -> ControlFlow<()> {
        self.steps.fetch_add(1, Ordering::Relaxed);
        let mut requests = self.requests.lock();
        let ends =
            |requests: &CheckpointerRequests| requests.stop || self.closed.load(Ordering::Acquire);
        let rest = pause(step, self.short_of_room.load(Ordering::Relaxed));
        if !ends(&requests) && !rest.is_zero() {
            self.changed.wait_for(&mut requests, rest);
        }
        if ends(&requests) {
            ControlFlow::Break(())
        } else {
            ControlFlow::Continue(())
        }
    }

    /// Between two parts of what is prepared for the log: not where a checkpoint waits for its turn.
    fn rest_preparing(&self, took: Duration) -> ControlFlow<()> {
        let mut requests = self.requests.lock();
        if !requests.stop && requests.through.is_none() {
            let rest = REST_MAX.min(took * PREPARING_RESTS);
            self.changed.wait_for(&mut requests, rest);
        }
        if requests.stop {
            ControlFlow::Break(())
        } else {
            ControlFlow::Continue(())
        }
    }

    fn checkpoint_when_asked(&self) {
        // What found no room the last time.
        let mut waiting: Option<u64> = None;
        loop {
            let rest = |took| self.rest_preparing(took);
            let _ = self.disk.prepare(self.segment_bytes, Some(&rest));
            let through = {
                let mut requests = self.requests.lock();
                loop {
                    if requests.stop {
                        return;
                    }
                    if let Some(through) = requests.through.take() {
                        break through;
                    }
                    match waiting.take() {
                        None => self.changed.wait(&mut requests),
                        Some(through) => {
                            self.changed.wait_for(&mut requests, RETRY);
                            // A newer order is about more of the log.
                            requests.through.get_or_insert(through);
                        }
                    }
                }
            };
            // Any other failure is kept as the poison.
            if let Err(Error::Full { .. }) =
                self.checkpoint_beside_commits(through, &|step| self.rest(step))
            {
                waiting = Some(through);
            }
        }
    }
}

/// How long a checkpoint in the background rests after a step.
fn pause(step: Step, is_short_of_room: bool) -> Duration {
    if is_short_of_room {
        // It is what makes room.
        Duration::ZERO
    } else {
        REST_MAX.min(step.took.mul_f64(RESTS * step.leisure))
    }
}

impl<B: Backend> Drop for Durable<B> {
    fn drop(&mut self) {
        self.shared.requests.lock().stop = true;
        self.shared.changed.notify_all();
        if let Some(thread) = self.checkpointer.take() {
            // It has nothing to say; if it panicked, that was printed.
            let _ = thread.join();
        }
    }
}

impl<B: Backend> Read for Durable<B> {
    fn get(&self, column: Column, key: &[u8]) -> Result<Option<Value>, Error> {
        self.shared.check()?;
        self.shared.backend.get(column, key)
    }

    fn scan<'a>(
        &'a self,
        column: Column,
        start: &[u8],
        end: &[u8],
        direction: Direction,
    ) -> Result<Scan<'a>, Error> {
        self.shared.check()?;
        self.shared.backend.scan(column, start, end, direction)
    }

    fn first(
        &self,
        column: Column,
        start: &[u8],
        end: &[u8],
    ) -> Result<Option<(Key, Value)>, Error> {
        self.shared.check()?;
        self.shared.backend.first(column, start, end)
    }
}

impl<B: Backend> Engine for Durable<B> {
    fn commit(&self, group: &[Batch]) -> Result<(), Error> {
        self.shared.commit(group)
    }

    fn snapshot(&self) -> Result<Box<dyn Snapshot>, Error> {
        self.shared.check()?;
        self.shared.backend.snapshot()
    }

    fn stats(&self) -> Stats {
        let log = match self.shared.log.try_lock() {
            Some(log) => log.stats(),
            None => *self.shared.log_was.lock(),
        };
        Stats {
            size_bytes: self.shared.backend.size_bytes() + log.bytes,
            log_bytes: log.bytes,
            syncs: log.syncs,
            last_sync: log.last_sync,
            torn_bytes: log.torn_bytes,
            snapshots: self.shared.backend.live_snapshots(),
        }
    }

    fn signs_of_life(&self) -> u64 {
        self.shared.steps.load(Ordering::Relaxed)
    }

    fn close(&self) -> Result<(), Error> {
        if self.shared.closed.swap(true, Ordering::AcqRel) {
            return Ok(());
        }
        // A checkpointer that is about to pause sees that it is closed, or is notified.
        drop(self.shared.requests.lock());
        self.shared.changed.notify_all();
        self.shared.check()?;
        let last = {
            let mut log = self.shared.log.lock();
            match log.len() {
                0 => log.last_older(),
                _ => match log.rotate() {
                    Ok(last) => Some(last),
                    Err(RotateError::NoRoom) => None,
                    Err(RotateError::Failed(error)) => {
                        return Err(Error::io("start a segment of", "the log")(error));
                    }
                },
            }
        };
        let began = Instant::now();
        let rest = |_| {
            if began.elapsed() < CLOSING_MAX {
                ControlFlow::Continue(())
            } else {
                ControlFlow::Break(())
            }
        };
        match last.map(|last| self.shared.checkpoint_beside_commits(last, &rest)) {
            // The next open replays the log instead.
            None | Some(Err(Error::Full { .. })) => Ok(()),
            Some(made) => made.map(|_| ()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_checkpoint_rests_by_what_it_took_and_not_where_room_is_short() {
        let ms = Duration::from_millis;
        let step = |took, leisure| Step { took, leisure };
        assert_eq!(pause(step(ms(2), 1.0), false), ms(22));
        assert_eq!(pause(step(ms(2), 0.5), false), ms(11));
        assert_eq!(pause(step(ms(2), 0.0), false), Duration::ZERO);
        assert_eq!(pause(step(ms(500), 1.0), false), REST_MAX);
        assert_eq!(pause(step(ms(2), 1.0), true), Duration::ZERO);
    }
}
