//! Requests and answers that are lost.

use std::fmt;
use std::io;
use std::path::Path;
use std::sync::Arc;

use tokio::sync::watch;

use super::{Bed, conflicts, load, swap, within};
use crate::files::{Files, FolderFiles, NewFile, StdFiles};
use crate::{Register, RegisterVersion, SwapError, SwapOutcome, VersionedValue, WriteId};

/// What is lost on the way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Nothing.
    None,
    /// Requests don't arrive.
    RequestsLost,
    /// Requests arrive, and their answers don't.
    AnswersLost,
    /// Connections end, and no new one can be made.
    Disconnected,
}

/// A register with a fault in the test's hand.
pub struct FaultyRegister {
    /// The handle.
    pub register: Arc<dyn Register>,
    /// What is lost of the handle's requests and answers from now on.
    pub fault: Arc<watch::Sender<Fault>>,
}

impl fmt::Debug for FaultyRegister {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FaultyRegister")
            .field("register", &self.register)
            .finish_non_exhaustive()
    }
}

impl FaultyRegister {
    /// From now on this is lost.
    pub fn set(&self, fault: Fault) {
        self.fault.send_replace(fault);
    }
}

/// The answer never comes, and what was swapped is there.
pub(super) async fn a_lost_answer_is_unknown(bed: &dyn Bed) {
    lose_an_answer(bed, None).await;
}

/// The connection ends behind the request.
pub(super) async fn a_lost_connection_is_unknown(bed: &dyn Bed) {
    lose_an_answer(bed, Some(Fault::Disconnected)).await;
}

async fn lose_an_answer(bed: &dyn Bed, then: Option<Fault>) {
    let other = bed.open().await;
    let first = swap(&*other, None, b"one").await;
    let faulty = bed.open_faulty().await;
    // Connections are made while nothing is lost yet.
    load(&*faulty.register).await;
    faulty.set(Fault::AnswersLost);
    let register = faulty.register.clone();
    let swapping = tokio::spawn(async move { register.swap(Some(first), b"two".to_vec()).await });
    let found = arrived(&*other, first).await;
    if let Some(fault) = then {
        faulty.set(fault);
    }
    let result = within("the swap's end", swapping).await.expect("a task");
    let write = unknown(result);
    assert_eq!((&*found.value, found.write), (&b"two"[..], write));
    let happened = SwapOutcome::Happened(found.version);
    assert_eq!(SwapOutcome::of(write, Some(first), Some(&found)), happened);

    // A caller that takes it for failed and tries again gets a conflict with its own write.
    faulty.set(Fault::None);
    conflicts(&*other, Some(first), Some(found.version)).await;
    let again = load(&*faulty.register).await.expect("a value");
    assert_eq!(again, found);
    let next = swap(&*faulty.register, Some(found.version), b"three").await;
    let found = load(&*other).await.expect("a value");
    assert_eq!(found.version, next);
    let superseded = SwapOutcome::of(write, Some(first), Some(&found));
    assert_eq!(superseded, SwapOutcome::Superseded);
}

/// Waits until the register has another version.
async fn arrived(register: &dyn Register, before: RegisterVersion) -> VersionedValue {
    within("a swap whose answer is lost", async {
        loop {
            let found = load(register).await.expect("a value");
            if found.version != before {
                return found;
            }
        }
    })
    .await
}

fn unknown(result: Result<RegisterVersion, SwapError>) -> WriteId {
    match result {
        Err(SwapError::Unknown { write, .. }) => write,
        other => panic!("a swap whose answer was lost ends with {other:?}"),
    }
}

/// A request that never arrives is either surely not carried out, or unknown: never a conflict, never done.
pub(super) async fn a_lost_request_is_no_conflict(bed: &dyn Bed) {
    let other = bed.open().await;
    let first = swap(&*other, None, b"one").await;
    let faulty = bed.open_faulty().await;
    load(&*faulty.register).await;
    faulty.set(Fault::RequestsLost);
    let swapping = faulty.register.swap(Some(first), b"two".to_vec());
    let result = within("the swap's end", swapping).await;
    let found = load(&*other).await.expect("a value");
    assert_eq!((&*found.value, found.version), (&b"one"[..], first));
    match result {
        Err(SwapError::Unknown { write, .. }) => {
            let outcome = SwapOutcome::of(write, Some(first), Some(&found));
            assert_eq!(outcome, SwapOutcome::Undecided);
        }
        Err(SwapError::Unavailable { .. }) => {}
        other => panic!("a swap whose request was lost ends with {other:?}"),
    }
    faulty.set(Fault::None);
    let second = swap(&*faulty.register, Some(first), b"two").await;
    conflicts(&*other, Some(first), Some(second)).await;
}

/// The operating system's files behind a fault: a device that fails before a file is replaced, or behind that.
#[derive(Clone, Debug)]
pub struct FaultyFiles(Arc<watch::Sender<Fault>>);

impl FaultyFiles {
    /// Files with this fault.
    pub fn new(fault: Arc<watch::Sender<Fault>>) -> Self {
        Self(fault)
    }

    fn fail(&self, faults: &[Fault]) -> io::Result<()> {
        if faults.contains(&self.0.borrow()) {
            return Err(io::Error::other("an injected fault"));
        }
        Ok(())
    }
}

impl Files for FaultyFiles {
    fn read(&self, path: &Path) -> io::Result<Vec<u8>> {
        StdFiles.read(path)
    }

    fn create(&self, path: &Path) -> io::Result<Box<dyn NewFile>> {
        self.fail(&[Fault::RequestsLost, Fault::Disconnected])?;
        StdFiles.create(path)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        StdFiles.rename(from, to)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        StdFiles.remove(path)
    }

    fn sync_folder_of(&self, path: &Path) -> io::Result<()> {
        // A connection that has ended behind the request takes the answer with it.
        self.fail(&[Fault::AnswersLost, Fault::Disconnected])?;
        StdFiles.sync_folder_of(path)
    }
}

impl FolderFiles for FaultyFiles {
    fn make_folder(&self, path: &Path) -> io::Result<()> {
        StdFiles.make_folder(path)
    }

    fn names(&self, folder: &Path) -> io::Result<Vec<String>> {
        StdFiles.names(folder)
    }

    fn link(&self, from: &Path, to: &Path) -> io::Result<()> {
        StdFiles.link(from, to)
    }
}
