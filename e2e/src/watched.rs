//! Changes of a namespace's objects, as the API server reports them: each with the moment at which this process received it,
//! by one clock.

use std::collections::BTreeMap;
use std::io::BufReader;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::{lock, wait};

/// A watch that ended begins anew after this.
const PAUSE: Duration = Duration::from_millis(200);

/// A change.
#[derive(Clone, Debug)]
pub struct ObservedChange {
    /// When it was received.
    pub at: Instant,
    /// The object, as it is then; nothing where it has gone.
    pub object: Option<Value>,
    /// Its kind's name in commands, and its own.
    pub name: (&'static str, String),
}

#[derive(Debug, Default)]
struct WatchState {
    /// In the order in which they were received.
    changes: Vec<ObservedChange>,
    now: BTreeMap<(&'static str, String), Value>,
    /// The kinds whose watches have reported something.
    begun: Vec<&'static str>,
    /// The watches that run.
    running: BTreeMap<&'static str, Child>,
}

/// Watches of one namespace; they end with the value.
#[derive(Debug)]
pub struct ObjectWatches {
    state: Arc<Mutex<WatchState>>,
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl ObjectWatches {
    /// Watches these kinds.
    pub fn begin(namespace: &str, kinds: &[&'static str]) -> Self {
        let (state, stop) = (
            Arc::<Mutex<WatchState>>::default(),
            Arc::<AtomicBool>::default(),
        );
        let threads = kinds.iter().map(|&kind| {
            let (state, stop, namespace) = (state.clone(), stop.clone(), namespace.to_owned());
            std::thread::spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    watch(&namespace, kind, &state, &stop);
                    std::thread::sleep(PAUSE);
                }
            })
        });
        let threads = threads.collect();
        Self {
            state,
            stop,
            threads,
        }
    }

    /// Waits until each watch has reported something.
    pub(crate) fn wait_until_begun(&self) {
        let kinds = self.threads.len();
        wait("the watches to report", || {
            match lock(&self.state).begun.len() {
                begun if begun == kinds => Ok(()),
                begun => Err(format!("{begun} of {kinds} do")),
            }
        });
    }

    /// All changes by now, in the order in which they were received.
    pub fn changes(&self) -> Vec<ObservedChange> {
        lock(&self.state).changes.clone()
    }

    /// The objects of a kind, as they were last received.
    pub(crate) fn now(&self, kind: &str) -> Vec<Value> {
        let state = lock(&self.state);
        let of_kind = state.now.iter().filter(|((of, _), _)| *of == kind);
        of_kind.map(|(_, object)| object.clone()).collect()
    }
}

impl Drop for ObjectWatches {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        for child in lock(&self.state).running.values_mut() {
            // It may have ended by itself.
            let _ = child.kill();
        }
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

/// Until the watch ends, which the API server brings about now and then.
fn watch(namespace: &str, kind: &'static str, state: &Mutex<WatchState>, stop: &AtomicBool) {
    let watch = ["--watch", "--output-watch-events", "-o", "json"];
    let child = Command::new("kubectl")
        .args(["-n", namespace, "get", kind])
        .args(watch)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn();
    let Ok(mut child) = child else { return };
    let Some(said) = child.stdout.take() else {
        return;
    };
    {
        let mut state = lock(state);
        state.running.insert(kind, child);
        // All objects are reported anew.
        state.now.retain(|(of, _), _| *of != kind);
        // Anyone who ends all of them has not seen this one.
        if stop.load(Ordering::Relaxed) {
            state
                .running
                .values_mut()
                .for_each(|child| drop(child.kill()));
        }
    }
    let said = BufReader::new(said);
    for event in serde_json::Deserializer::from_reader(said).into_iter::<Value>() {
        let (at, Ok(mut event)) = (Instant::now(), event) else {
            break;
        };
        let object = event["object"].take();
        let name = object["metadata"]["name"].as_str().unwrap_or_default();
        let name = (kind, name.to_owned());
        let is_gone = event["type"] == "DELETED";
        let mut state = lock(state);
        if !state.begun.contains(&kind) {
            state.begun.push(kind);
        }
        if is_gone {
            state.now.remove(&name)
        } else {
            state.now.insert(name.clone(), object.clone())
        };
        let object = (!is_gone).then_some(object);
        state.changes.push(ObservedChange { at, object, name });
    }
    let child = lock(state).running.remove(kind);
    if let Some(mut child) = child {
        let _ = child.kill();
        let _ = child.wait();
    }
}
