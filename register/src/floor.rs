//! Notices a store that went back.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::RegisterVersion;

/// The highest version that a handle has seen. A store that was restored from a copy, or whose value was removed, has a lower
/// one. A process that relied on the later value must not go on from the older one.
#[derive(Debug, Default)]
pub struct VersionFloor(AtomicU64);

impl VersionFloor {
    /// What a load that begins now must find at least; none if no value was seen yet.
    pub fn get(&self) -> Option<RegisterVersion> {
        match self.0.load(Ordering::Acquire) {
            0 => None,
            version => Some(RegisterVersion(version)),
        }
    }

    /// A version was seen.
    pub fn raise(&self, version: RegisterVersion) {
        self.0.fetch_max(version.0, Ordering::AcqRel);
    }

    /// Takes in what a load found. `least` is [`Self::get`] from before the load: others of this handle may have seen
    /// more meanwhile.
    ///
    /// # Errors
    /// Why the store must have gone back.
    pub fn check(
        &self,
        least: Option<RegisterVersion>,
        found: Option<RegisterVersion>,
    ) -> Result<(), String> {
        match (least, found) {
            (Some(least), None) => Err(format!("its value was removed, after version {least}")),
            (Some(least), Some(found)) if found < least => Err(format!(
                "it has version {found}, after version {least}: an older copy took its place"
            )),
            (_, Some(found)) => {
                self.raise(found);
                Ok(())
            }
            (None, None) => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_store_that_goes_back_is_noticed() {
        let floor = VersionFloor::default();
        let version = |version| Some(RegisterVersion(version));
        assert_eq!(floor.check(floor.get(), None), Ok(()));
        assert_eq!(floor.check(floor.get(), version(4)), Ok(()));
        assert_eq!(floor.check(floor.get(), version(4)), Ok(()));
        assert!(floor.check(floor.get(), version(3)).is_err());
        assert!(floor.check(floor.get(), None).is_err());
        // One that began before the other ended may find less than that one.
        let before = floor.get();
        floor.raise(RegisterVersion(9));
        assert_eq!(floor.check(before, version(5)), Ok(()));
        assert_eq!(floor.get(), version(9));
    }
}
