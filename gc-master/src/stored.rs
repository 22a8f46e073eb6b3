//! The master's durable state in a register: which one it is, and swaps until their outcome is known.

use std::sync::Arc;
use std::time::Duration;

use percolator_protocol::election::{StateNumber, StateSource};
use percolator_register::{
    BoxFuture, LoadError, Register, RegisterVersion, SwapError, VersionedValue, WriteId,
};
use tokio::time::Instant;

/// The first byte of a stored value. Another one is of another version of this program.
const FORMAT: u8 = 2;
/// The format, the term and the number.
const HEADER_BYTES: usize = 17;
/// The pause after a request that the register did not carry out.
const RETRY: Duration = Duration::from_millis(100);

/// The clock of a [`StateStore`]: tokio's, or a simulator's.
pub trait StoreClock: Send + Sync {
    /// Since some fixed point; never goes back.
    fn now(&self) -> Duration;
    /// Waits.
    fn sleep(&self, duration: Duration) -> BoxFuture<'_, ()>;
}

/// Tokio's clock, since it was made.
struct TokioClock(Instant);

impl StoreClock for TokioClock {
    fn now(&self) -> Duration {
        self.0.elapsed()
    }

    fn sleep(&self, duration: Duration) -> BoxFuture<'_, ()> {
        Box::pin(tokio::time::sleep(duration))
    }
}

/// How a [`StateStore`] waits for its register.
#[derive(Clone)]
pub struct StoreWaits {
    /// By which clock.
    pub clock: Arc<dyn StoreClock>,
    /// The pause after a request that the register did not carry out.
    pub retry: Duration,
    /// How long a register that doesn't answer is asked again.
    pub retry_max: Duration,
}

impl StoreWaits {
    /// Those of a process, whose register is asked again for so long.
    pub(crate) fn up_to(retry_max: Duration) -> Self {
        Self {
            clock: Arc::new(TokioClock(Instant::now())),
            retry: RETRY,
            retry_max,
        }
    }
}

/// A state of the master's cluster, and which one it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredState {
    /// Its term is that of the leader that wrote it.
    pub number: StateNumber,
    /// As [`DirectoryState`](crate::DirectoryState) encodes it.
    pub state: Vec<u8>,
}

impl StoredState {
    /// The bytes to store: a format byte, term and number (8 bytes each, little endian), the state.
    pub fn encode(number: StateNumber, state: &[u8]) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(HEADER_BYTES + state.len());
        bytes.push(FORMAT);
        bytes.extend_from_slice(&number.term.to_le_bytes());
        bytes.extend_from_slice(&number.number.to_le_bytes());
        bytes.extend_from_slice(state);
        bytes
    }

    /// Of a stored value; none: it is no state.
    pub fn decode(mut bytes: Vec<u8>) -> Option<Self> {
        let (&format, numbers) = bytes.get(..HEADER_BYTES)?.split_first()?;
        let ([term, number], []) = numbers.as_chunks::<8>() else {
            return None;
        };
        let number = StateNumber {
            term: u64::from_le_bytes(*term),
            number: u64::from_le_bytes(*number),
        };
        (format == FORMAT).then(|| Self {
            number,
            state: bytes.split_off(HEADER_BYTES),
        })
    }
}

/// Why the state isn't durable, or can't be read.
#[derive(Clone, Debug, thiserror::Error)]
pub enum PersistError {
    /// The register holds another master's state.
    #[error(
        "another master has written the cluster's state since: this one leads no more, and what it decided last doesn't count"
    )]
    Superseded,
    /// The register didn't take it.
    #[error("the master's state can't be made durable: {0}")]
    Swap(#[from] SwapError),
    /// The register can't be read.
    #[error("the master's state can't be read: {0}")]
    Load(#[from] LoadError),
    /// The register holds something else.
    #[error(
        "the register of the master's state holds {bytes} bytes that are none: restore it from a copy; or \
         remove it, and see `percolator master rebuild`"
    )]
    NoState {
        /// How many.
        bytes: usize,
    },
    /// The folder doesn't take the cluster's id.
    #[error(transparent)]
    Folder(Arc<percolator_server::Error>),
}

impl PersistError {
    /// Whether the same store may succeed later: the register was not reached.
    pub fn passes(&self) -> bool {
        match self {
            Self::Swap(error) => !matches!(
                error,
                SwapError::TooLarge { .. } | SwapError::Refused { .. } | SwapError::Damaged { .. }
            ),
            Self::Load(LoadError::Unavailable { .. }) => true,
            Self::Superseded | Self::Load(_) | Self::NoState { .. } | Self::Folder(_) => false,
        }
    }
}

/// The register of the state, for one leader and one term.
pub struct StateStore {
    register: Arc<dyn Register>,
    term: u64,
    version: Option<RegisterVersion>,
    /// What the register has at `version`.
    held: Option<Vec<u8>>,
    /// Swaps that expect `version`, and whose outcome is unknown: their names, and which change each stores.
    undecided: Vec<(WriteId, u64)>,
    waits: StoreWaits,
}

impl StateStore {
    /// Reads the register. This master may rely on its value only when [`Self::store`] has succeeded once: from then on, late writes of
    /// earlier leaders are conflicts.
    ///
    /// # Errors
    /// [`PersistError::Load`], [`PersistError::NoState`].
    pub async fn load(
        register: Arc<dyn Register>,
        term: u64,
        waits: StoreWaits,
    ) -> Result<(Self, Option<StoredState>), PersistError> {
        let found = register.load().await?;
        let version = found.as_ref().map(|found| found.version);
        let held = found.as_ref().map(|found| found.value.clone());
        let stored = found.map(|VersionedValue { value, .. }| {
            let bytes = value.len();
            StoredState::decode(value).ok_or(PersistError::NoState { bytes })
        });
        let store = Self {
            register,
            term,
            version,
            held,
            undecided: Vec::new(),
            waits,
        };
        Ok((store, stored.transpose()?))
    }

    /// Reads the register, as [`Self::load`] does. The state is the copy in a folder, if that is later; whether it is.
    ///
    /// # Errors
    /// As [`Self::load`].
    pub async fn load_newest(
        register: Arc<dyn Register>,
        term: u64,
        waits: StoreWaits,
        copy: Option<(StateNumber, Vec<u8>)>,
    ) -> Result<(Self, Option<StoredState>, StateSource), PersistError> {
        let (store, stored) = Self::load(register, term, waits).await?;
        let in_register = stored.as_ref().map(|stored| stored.number);
        let in_folder = copy.as_ref().map(|(number, _)| *number);
        let source = StateNumber::take_over(in_register, in_folder);
        let stored = match source {
            StateSource::Copy => copy.map(|(number, state)| StoredState { number, state }),
            StateSource::Register => stored,
        };
        Ok((store, stored, source))
    }

    /// The term in which it writes.
    pub fn term(&self) -> u64 {
        self.term
    }

    /// Replaces the state by that after change `number`; it is durable when this returns. After an error it may be or not.
    /// The store is of use after one that [passes](PersistError::passes).
    ///
    /// # Errors
    /// [`PersistError::Superseded`], and those of the register.
    pub async fn store(&mut self, number: u64, state: &[u8]) -> Result<(), PersistError> {
        let waits = self.waits.clone();
        let deadline = waits.clock.now() + waits.retry_max;
        loop {
            let which = StateNumber {
                term: self.term,
                number,
            };
            let value = StoredState::encode(which, state);
            let error = match self.register.swap(self.version, value.clone()).await {
                Ok(version) => {
                    self.holds(version, value);
                    return Ok(());
                }
                Err(error) => error,
            };
            match &error {
                SwapError::Unknown { write, .. } => self.undecided.push((*write, number)),
                // Another master's state is there; or that of a swap of this one whose response was lost; or the same state
                // as before, in an object that was changed beside it.
                SwapError::Conflict { .. } => {}
                SwapError::Unavailable { .. } if waits.clock.now() < deadline => {
                    waits.clock.sleep(waits.retry).await;
                    continue;
                }
                SwapError::Unavailable { .. }
                | SwapError::TooLarge { .. }
                | SwapError::Refused { .. }
                | SwapError::Damaged { .. } => return Err(error.into()),
            }
            if self.decided(deadline, error).await? == Some(number) {
                return Ok(());
            }
        }
    }

    fn holds(&mut self, version: RegisterVersion, value: Vec<u8>) {
        self.version = Some(version);
        self.held = Some(value);
        self.undecided.clear();
    }

    /// Which of the undecided swaps happened. None: none of them has yet, so that a further swap decides.
    async fn decided(
        &mut self,
        deadline: Duration,
        error: SwapError,
    ) -> Result<Option<u64>, PersistError> {
        let waits = self.waits.clone();
        loop {
            let found = match self.register.load().await {
                Ok(found) => found,
                Err(damaged @ LoadError::Damaged { .. }) => return Err(damaged.into()),
                Err(_) if waits.clock.now() >= deadline => {
                    return Err(match error {
                        // Perhaps another master's: as long as that isn't known, this one doesn't lead.
                        SwapError::Conflict { .. } if self.undecided.is_empty() => {
                            PersistError::Superseded
                        }
                        error => error.into(),
                    });
                }
                Err(_) => {
                    waits.clock.sleep(waits.retry).await;
                    continue;
                }
            };
            if found.as_ref().map(|found| found.version) == self.version {
                if waits.clock.now() >= deadline {
                    return Err(error.into());
                }
                // A register that fails at once is not asked all the time.
                waits.clock.sleep(waits.retry).await;
                return Ok(None);
            }
            let found = found.ok_or(PersistError::Superseded)?;
            let mut undecided = self.undecided.iter();
            if let Some((_, number)) = undecided.find(|(write, _)| *write == found.write) {
                let number = *number;
                self.holds(found.version, found.value);
                return Ok(Some(number));
            }
            if self.held.as_ref() != Some(&found.value) {
                return Err(PersistError::Superseded);
            }
            // The value is the same: no other state was stored. A swap that expected the version before never happens.
            self.holds(found.version, found.value);
            if waits.clock.now() >= deadline {
                return Err(error.into());
            }
            waits.clock.sleep(waits.retry).await;
            return Ok(None);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;
    use std::sync::atomic::{AtomicU64, Ordering};

    use percolator_register::{BoxFuture, FileRegister};

    use super::*;

    /// What a swap does before the register, or after it.
    #[derive(Clone, Copy, Debug)]
    enum Fault {
        /// It is lost on the way.
        RequestLost,
        /// It happens, and the answer is lost.
        AnswerLost,
    }

    /// A register that loses requests and answers.
    #[derive(Debug)]
    struct FaultyRegister {
        register: FileRegister,
        faults: Mutex<Vec<Fault>>,
    }

    impl Register for FaultyRegister {
        fn load(&self) -> BoxFuture<'_, Result<Option<VersionedValue>, LoadError>> {
            self.register.load()
        }

        fn swap(
            &self,
            expected: Option<RegisterVersion>,
            value: Vec<u8>,
        ) -> BoxFuture<'_, Result<RegisterVersion, SwapError>> {
            Box::pin(async move {
                let fault = self.faults.lock().unwrap().pop();
                let unknown = |write| SwapError::Unknown {
                    register: "it".to_owned(),
                    write,
                    reason: "lost".to_owned(),
                };
                match fault {
                    None => self.register.swap(expected, value).await,
                    Some(Fault::RequestLost) => Err(unknown(WriteId::random())),
                    Some(Fault::AnswerLost) => {
                        self.register.swap(expected, value).await?;
                        let found = self.register.load().await?.unwrap();
                        Err(unknown(found.write))
                    }
                }
            })
        }
    }

    fn waits() -> StoreWaits {
        StoreWaits::up_to(Duration::from_secs(60))
    }

    /// The store of the leader of this term.
    async fn open(register: &Arc<FaultyRegister>, term: u64) -> (StateStore, Option<StoredState>) {
        let opened = StateStore::load(register.clone(), term, waits()).await;
        opened.unwrap()
    }

    async fn read(register: &Arc<FaultyRegister>) -> Option<StoredState> {
        open(register, 9).await.1
    }

    fn register(folder: &tempfile::TempDir) -> Arc<FaultyRegister> {
        Arc::new(FaultyRegister {
            register: FileRegister::new(folder.path().join("state")),
            faults: Mutex::default(),
        })
    }

    #[tokio::test]
    async fn lost_requests_and_answers_are_decided() {
        let folder = tempfile::tempdir().unwrap();
        let register = register(&folder);
        let (mut store, first) = open(&register, 1).await;
        assert_eq!(first, None);
        let faults = [
            vec![Fault::RequestLost],
            vec![Fault::AnswerLost],
            vec![Fault::AnswerLost, Fault::RequestLost, Fault::RequestLost],
        ];
        for (number, faults) in (1..).zip(faults) {
            *register.faults.lock().unwrap() = faults;
            let state = format!("state {number}").into_bytes();
            store.store(number, &state).await.unwrap();
            let which = StateNumber { term: 1, number };
            let stored = StoredState {
                number: which,
                state,
            };
            assert_eq!(read(&register).await, Some(stored));
        }
    }

    #[tokio::test]
    async fn a_later_leader_makes_every_write_a_conflict() {
        for fault in [None, Some(Fault::RequestLost)] {
            let folder = tempfile::tempdir().unwrap();
            let register = register(&folder);
            let (mut old, _) = open(&register, 1).await;
            old.store(1, b"one").await.unwrap();
            let (mut new, found) = open(&register, 2).await;
            let state = found.unwrap().state;
            new.store(0, &state).await.unwrap();
            *register.faults.lock().unwrap() = fault.into_iter().collect();
            let error = old.store(2, b"two").await.unwrap_err();
            assert!(matches!(error, PersistError::Superseded), "{error}");
            let stored = StoredState {
                number: StateNumber { term: 2, number: 0 },
                state,
            };
            assert_eq!(read(&register).await, Some(stored));
        }
    }

    /// As a label that a person gives to the register's object: the version is another one, and the value the same.
    async fn touch(register: &Arc<FaultyRegister>) {
        replace(register, <[u8]>::to_vec).await;
    }

    async fn replace(register: &Arc<FaultyRegister>, by: fn(&[u8]) -> Vec<u8>) {
        let found = register.register.load().await.unwrap().unwrap();
        let swap = register
            .register
            .swap(Some(found.version), by(&found.value));
        swap.await.unwrap();
    }

    /// Such as that of a cluster that was begun anew, whose terms and numbers begin again.
    #[tokio::test]
    async fn another_state_of_the_same_number_is_another_masters() {
        let folder = tempfile::tempdir().unwrap();
        let register = register(&folder);
        let (mut store, _) = open(&register, 1).await;
        store.store(1, b"one").await.unwrap();
        replace(&register, |value| [value, b" more"].concat()).await;
        let error = store.store(2, b"two").await.unwrap_err();
        assert!(matches!(error, PersistError::Superseded), "{error}");
        assert_eq!(read(&register).await.unwrap().state, b"one more");
    }

    #[tokio::test]
    async fn a_register_that_was_touched_is_no_other_masters() {
        for fault in [None, Some(Fault::RequestLost), Some(Fault::AnswerLost)] {
            let folder = tempfile::tempdir().unwrap();
            let register = register(&folder);
            let (mut store, _) = open(&register, 1).await;
            store.store(1, b"one").await.unwrap();
            touch(&register).await;
            store.store(2, b"two").await.unwrap();
            touch(&register).await;
            *register.faults.lock().unwrap() = fault.into_iter().collect();
            store.store(3, b"three").await.unwrap();
            assert_eq!(read(&register).await.unwrap().state, b"three");
            // Nor is one that was touched before the first write of a new leader.
            let (mut next, found) = open(&register, 2).await;
            touch(&register).await;
            next.store(0, &found.unwrap().state).await.unwrap();
            let error = store.store(4, b"four").await.unwrap_err();
            assert!(matches!(error, PersistError::Superseded), "{error}");
        }
    }

    #[tokio::test]
    async fn what_no_master_stored_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let register = register(&folder);
        register.swap(None, b"{}".to_vec()).await.unwrap();
        let loaded = StateStore::load(register, 1, waits()).await;
        let error = loaded.map(|(_, stored)| stored).unwrap_err();
        assert!(
            matches!(error, PersistError::NoState { bytes: 2 }),
            "{error}"
        );
    }

    /// It answers each write at once with an unknown outcome, and returns the value that it had before.
    #[derive(Debug, Default)]
    struct Failing {
        swaps: AtomicU64,
    }

    impl Register for Failing {
        fn load(&self) -> BoxFuture<'_, Result<Option<VersionedValue>, LoadError>> {
            Box::pin(async { Ok(None) })
        }

        fn swap(
            &self,
            _expected: Option<RegisterVersion>,
            _value: Vec<u8>,
        ) -> BoxFuture<'_, Result<RegisterVersion, SwapError>> {
            let number = self.swaps.fetch_add(1, Ordering::Relaxed);
            assert!(number < 1_000, "it is asked all the time");
            Box::pin(async move {
                Err(SwapError::Unknown {
                    register: "the register".to_owned(),
                    write: WriteId(u128::from(number).to_le_bytes()),
                    reason: "internal error".into(),
                })
            })
        }
    }

    /// Goes on by itself only while a caller waits.
    #[derive(Default)]
    struct WaitedFor(AtomicU64);

    impl StoreClock for WaitedFor {
        fn now(&self) -> Duration {
            Duration::from_millis(self.0.load(Ordering::Relaxed))
        }

        fn sleep(&self, duration: Duration) -> BoxFuture<'_, ()> {
            let millis = u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
            self.0.fetch_add(millis, Ordering::Relaxed);
            Box::pin(async {})
        }
    }

    #[tokio::test]
    async fn a_register_that_fails_at_once_is_asked_now_and_then() {
        let register = Arc::new(Failing::default());
        let waits = StoreWaits {
            clock: Arc::new(WaitedFor::default()),
            retry: RETRY,
            retry_max: Duration::from_secs(5),
        };
        let (mut store, _) = StateStore::load(register.clone(), 1, waits).await.unwrap();
        assert!(store.store(1, b"state").await.is_err());
        assert!(register.swaps.load(Ordering::Relaxed) <= 51);
    }
}
