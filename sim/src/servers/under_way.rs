//! A write of a small file that takes its time: a process that is killed meanwhile may have begun with it.

use parking_lot::Mutex;

use crate::disk::SimDisk;

/// What a file will hold when the write that is under way has ended.
pub(super) struct UnderWay<T>(Mutex<Option<T>>);

impl<T> Default for UnderWay<T> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<T> UnderWay<T> {
    /// Waits for as long as the write takes, and gives back what is to be written then.
    pub(super) async fn wait(&self, write: T, takes: impl Future<Output = ()>) -> T {
        *self.0.lock() = Some(write);
        takes.await;
        let write = self.0.lock().take();
        write.expect("it is taken when the process is killed, and then nobody waits")
    }

    /// The process is killed, on a device that carries out so many operations at the most. Nobody is there to hear of the write.
    pub(super) fn killed(&self, disk: &SimDisk, steps: u64, store: impl FnOnce(T)) {
        if let Some(write) = self.0.lock().take() {
            disk.die_within(steps);
            store(write);
        }
    }
}
