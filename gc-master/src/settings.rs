//! The settings of garbage collection. Administrators set them in the manifest (`spec.gc`), or, if the
//! manifest leaves them open, with `percolator gc set`.
//!
//! The manifest comes in a file, which is read again and again: it wins, and is not kept here, as it is
//! always given. What was set is kept durably, and by every tablet server too, so that a rebuilt state has it: the newest that
//! any of them keeps. Changes are numbered by the oracle's time.

use std::time::Duration;

use percolator_protocol::safe_point::RetentionPolicy;
use serde::{Deserialize, Serialize};

use crate::core::Directory;
use crate::refusal::Refusal;

/// How long versions are kept where nothing else is set.
pub const RETENTION: Duration = Duration::from_secs(600);
/// The shortest and the longest retention, and limit of how long a gc-lock may be held.
pub const RETENTION_MIN: Duration = Duration::from_secs(1);
/// See [`RETENTION_MIN`].
pub const RETENTION_MAX: Duration = Duration::from_secs(366 * 24 * 3600);

/// What was set, as the master keeps it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct StoredSettings {
    /// Grows with each change: the oracle's time when it was made, or one more than before.
    pub revision: u64,
    /// How long versions are kept, in milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retention_ms: Option<u64>,
    /// How long a gc-lock may be held, in milliseconds; `None`: as long as it is renewed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hold_ms_max: Option<u64>,
    /// Neither point moves.
    pub paused: bool,
}

/// The manifest: of garbage collection, `spec.gc`, whose open settings may be set otherwise; and the expected number of servers of
/// each role.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Manifest {
    /// How long versions are kept, in milliseconds.
    pub retention_ms: Option<u64>,
    /// How long a gc-lock may be held, in milliseconds; zero: as long as it is renewed.
    pub max_hold_ms: Option<u64>,
    /// Whether neither point moves.
    pub paused: Option<bool>,
    /// Whether the master moves and splits tablets by itself; servers that are drained are emptied all the same.
    pub balance: Option<bool>,
    /// A tablet of more bytes is split; zero: none is.
    pub split_bytes: Option<u64>,
    /// A tablet of which more cells a second are read or written may be split; zero: no load counts.
    pub split_load: Option<u64>,
    /// The expected number of tablet servers.
    pub tablet_servers: Option<u32>,
    /// The expected number of masters, for those who watch them.
    pub masters: Option<u32>,
    /// The expected number of oracles, for those who watch them.
    pub oracles: Option<u32>,
}

/// A requested change of settings; `None`: as it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SettingsChange {
    /// How long versions are kept.
    pub retention: Option<Duration>,
    /// How long a gc-lock may be held; zero: as long as it is renewed.
    pub hold_max: Option<Duration>,
    /// Whether neither point moves.
    pub paused: Option<bool>,
}

/// Why a file doesn't say what the manifest does.
#[derive(Debug, thiserror::Error)]
pub enum ManifestError {
    /// It isn't the JSON of such a file.
    #[error("it is not what a manifest is made into for the master: {0}")]
    Malformed(#[from] serde_json::Error),
    /// A value is out of bounds.
    #[error(transparent)]
    Refused(#[from] Refusal),
}

impl StoredSettings {
    pub(crate) fn is_default(&self) -> bool {
        *self == Self::default()
    }
}

impl Manifest {
    /// Reads the file's content, `{"retentionMs": 600000, "maxHoldMs": 3600000, "paused": false, "balance": true,
    /// "splitBytes": 268435456, "splitLoad": 1000, "tabletServers": 3, "masters": 2, "oracles": 2}`,
    /// where every field may be left out.
    ///
    /// # Errors
    /// It is something else.
    pub fn decode(bytes: &[u8]) -> Result<Self, ManifestError> {
        let manifest: Self = serde_json::from_slice(bytes)?;
        check(
            manifest.retention_ms.map(Duration::from_millis),
            manifest.max_hold_ms.map(Duration::from_millis),
        )?;
        Ok(manifest)
    }

    /// The expected number of masters; 0: that isn't known.
    pub(crate) fn masters_expected(&self) -> u32 {
        self.of_role(self.masters)
    }

    /// The expected number of oracles; 0: that isn't known.
    pub(crate) fn oracles_expected(&self) -> u32 {
        self.of_role(self.oracles)
    }

    /// A manifest with expected numbers of servers leaves out roles of which there is one.
    fn of_role(&self, set: Option<u32>) -> u32 {
        let one = self.tablet_servers.map(|_| 1);
        set.or(one).unwrap_or(0)
    }

    /// The names of the fields of `spec.gc` that it sets.
    pub(crate) fn fields(&self) -> impl Iterator<Item = &'static str> {
        let fields = [
            ("retention", self.retention_ms.is_some()),
            ("maxHold", self.max_hold_ms.is_some()),
            ("paused", self.paused.is_some()),
        ];
        fields
            .into_iter()
            .filter_map(|(name, is_set)| is_set.then_some(name))
    }
}

fn check(retention: Option<Duration>, hold_max: Option<Duration>) -> Result<(), Refusal> {
    let out_of_bounds = |time: &Duration| !(RETENTION_MIN..=RETENTION_MAX).contains(time);
    if let Some(asked) = retention.filter(out_of_bounds) {
        return Err(Refusal::Retention { asked });
    }
    if let Some(asked) = hold_max.filter(|time| !time.is_zero() && out_of_bounds(time)) {
        return Err(Refusal::HoldMax { asked });
    }
    Ok(())
}

impl Directory {
    fn kept(&self) -> Option<&StoredSettings> {
        self.state.as_ref().map(|state| &state.gc.set)
    }

    /// How long versions are kept.
    pub fn retention(&self) -> Duration {
        let set = || self.kept().and_then(|set| set.retention_ms);
        let effective = self.manifest.retention_ms.or_else(set);
        effective.map_or(self.settings.retention, Duration::from_millis)
    }

    /// How long a gc-lock may be held; `None`: as long as it is renewed.
    pub fn hold_max(&self) -> Option<Duration> {
        let set = || self.kept().and_then(|set| set.hold_ms_max);
        let effective = self.manifest.max_hold_ms.or_else(set);
        effective.filter(|ms| *ms != 0).map(Duration::from_millis)
    }

    /// Whether neither point moves.
    pub fn paused(&self) -> bool {
        let set = || self.kept().is_some_and(|set| set.paused);
        self.manifest.paused.unwrap_or_else(set)
    }

    pub(crate) fn retention_policy(&self) -> RetentionPolicy {
        RetentionPolicy {
            retention: self.retention(),
            hold_max: self.hold_max(),
        }
    }

    /// Replaces the manifest.
    pub fn take_manifest(&mut self, manifest: Manifest) {
        self.manifest = manifest;
    }

    /// Changes settings, where the manifest leaves them open.
    ///
    /// # Errors
    /// [`Refusal::Retention`], [`Refusal::HoldMax`], [`Refusal::OfManifest`] and [`Refusal::NoState`].
    pub fn set_collection(&mut self, change: SettingsChange) -> Result<(), Refusal> {
        check(change.retention, change.hold_max)?;
        for field in self.manifest.fields() {
            let is_asked = match field {
                "retention" => change.retention.is_some(),
                "maxHold" => change.hold_max.is_some(),
                _ => change.paused.is_some(),
            };
            if is_asked {
                return Err(Refusal::OfManifest { field });
            }
        }
        let time = self.collection.now.as_u64();
        let state = self.state.as_mut().ok_or(Refusal::NoState)?;
        let millis = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        let set = &mut state.gc.set;
        set.retention_ms = change.retention.map(millis).or(set.retention_ms);
        if let Some(hold_max) = change.hold_max {
            set.hold_ms_max = Some(millis(hold_max)).filter(|ms| *ms != 0);
        }
        set.paused = change.paused.unwrap_or(set.paused);
        set.revision = time.max(set.revision + 1);
        self.dirty = true;
        Ok(())
    }
}
