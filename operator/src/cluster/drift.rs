//! What admission webhooks and policies make of objects that the operator applies. Such an object never becomes equal to what
//! was asked for: it counts as applied, is not applied again until somebody changes it, and the condition Drifted names it.

use std::collections::BTreeMap;

use percolator_api::Reason;
use serde_json::Value;

use super::monitored::ConditionValue;
use super::object::{Kind, Object, asked_mark, fingerprint};
use super::observed::Observed;

/// In this annotation Kubernetes counts the roll-outs of a Deployment.
const ROLL_OUTS: &str = "deployment.kubernetes.io/revision";

/// An object that the API server accepted, and keeps otherwise than it was applied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct AlteredObject {
    /// The mark of the object that was applied.
    mark: Value,
    /// What the API server made of it, as a fingerprint.
    fingerprint: String,
    /// Whether others say how many pods there are: an autoscaler.
    is_scaled_by_others: bool,
    /// The first place that differs.
    place: String,
}

impl AlteredObject {
    /// None if the API server keeps the object as it was applied.
    pub(crate) fn of(object: &Object, applied: &Value) -> Option<Self> {
        let is_scaled_by_others = object.value.pointer("/spec/replicas").is_none();
        Some(Self {
            place: object.differs_at(applied)?,
            mark: asked_mark(&object.value).clone(),
            fingerprint: stable_fingerprint(applied, is_scaled_by_others),
            is_scaled_by_others,
        })
    }

    /// Whether the object that is there is still as the API server made it.
    pub(super) fn is_of(&self, live: &Value) -> bool {
        self.fingerprint == stable_fingerprint(live, self.is_scaled_by_others)
    }

    /// Whether applying this object again would change nothing of the one that is there.
    pub(super) fn accounts_for(&self, object: &Object, live: &Value) -> bool {
        self.mark == *asked_mark(&object.value) && self.is_of(live)
    }
}

/// The fingerprint of an object without the fields that change by themselves.
fn stable_fingerprint(live: &Value, is_scaled_by_others: bool) -> String {
    let mut live = live.clone();
    if let Some(fields) = live.as_object_mut() {
        fields.remove("status");
    }
    if let Some(metadata) = live["metadata"].as_object_mut() {
        for field in ["managedFields", "resourceVersion", "generation"] {
            metadata.remove(field);
        }
        if let Some(annotations) = metadata
            .get_mut("annotations")
            .and_then(Value::as_object_mut)
        {
            annotations.remove(ROLL_OUTS);
        }
    }
    if is_scaled_by_others {
        let spec = live.get_mut("spec").and_then(Value::as_object_mut);
        spec.and_then(|fields| fields.remove("replicas"));
    }
    fingerprint(&live)
}

/// The condition Drifted.
pub(super) fn drifted(observed: &Observed, claims: &[(String, &'static str)]) -> ConditionValue {
    let altered: &BTreeMap<(Kind, String), AlteredObject> = &observed.altered;
    let objects = altered
        .iter()
        .map(|((kind, name), altered)| format!("{} {name} at {}", kind.name(), altered.place));
    let claims = claims
        .iter()
        .map(|(name, place)| format!("PersistentVolumeClaim {name} at {place}"));
    let places: Vec<String> = objects.chain(claims).collect();
    if places.is_empty() {
        let message = "the API server keeps all objects as the operator applies them".to_owned();
        return (false, Reason::NotAltered, message);
    }
    let message = format!(
        "an admission webhook or policy changes what the operator applies, or this Kubernetes doesn't know the field or keep the value (as false in \
         pod.specPatch), and the operator \
         leaves it so: {}; to be rid of this, exempt the objects there, or have the spec ask for the same",
        places.join(", ")
    );
    (true, Reason::AlteredByAdmission, message)
}
