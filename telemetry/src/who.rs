//! Which server a line of the log belongs to: one process may run several servers, a thread each with threads of their own.

use std::cell::RefCell;
use std::sync::{Arc, OnceLock};

/// A server, as each line of its log names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerIdentity {
    /// Its role, one of those of [`crate::trace::key::ROLE`].
    pub role: &'static str,
    /// Its stable name, as `tablet-0`.
    pub server: String,
}

/// The server of each thread that has none of its own.
static PROCESS: OnceLock<Arc<ServerIdentity>> = OnceLock::new();

thread_local! {
    static THREAD: RefCell<Option<Arc<ServerIdentity>>> = const { RefCell::new(None) };
}

impl ServerIdentity {
    /// The whole process is this server. The first one counts.
    pub fn is_process(self) {
        let _ = PROCESS.set(Arc::new(self));
    }

    /// This thread works for this server, until it ends.
    pub fn is_thread(self) {
        THREAD.set(Some(Arc::new(self)));
    }
}

/// The server that this thread works for, if one was set.
pub fn current() -> Option<Arc<ServerIdentity>> {
    // A thread may still log while it ends.
    let own = THREAD.try_with(|who| who.borrow().clone());
    own.ok().flatten().or_else(|| PROCESS.get().cloned())
}

/// Work for another thread, in the name of the server of this one.
pub fn inherited<T>(work: impl FnOnce() -> T) -> impl FnOnce() -> T {
    let enter = entering();
    move || {
        enter();
        work()
    }
}

/// A function that makes its thread work for the server of this one.
pub fn entering() -> impl Fn() {
    let who = current();
    move || {
        if who.is_some() {
            THREAD.set(who.clone());
        }
    }
}

#[test]
fn a_thread_works_for_the_server_that_started_it() {
    let tablet = ServerIdentity {
        role: "tablet",
        server: "tablet-0".into(),
    };
    let (known, all) = (tablet.clone(), tablet.clone());
    let inner = std::thread::spawn(move || {
        tablet.is_thread();
        std::thread::spawn(inherited(current)).join()
    });
    let inner = inner.join().expect("no panic").expect("no panic");
    assert_eq!(inner.as_deref(), Some(&known));
    assert_eq!(current(), None);

    all.is_process();
    assert_eq!(current().as_deref(), Some(&known));
    let other = ServerIdentity {
        role: "tso",
        server: "tso-0".into(),
    };
    let asked = other.clone();
    let own = std::thread::spawn(move || {
        asked.is_thread();
        current()
    });
    assert_eq!(own.join().expect("no panic").as_deref(), Some(&other));
}
