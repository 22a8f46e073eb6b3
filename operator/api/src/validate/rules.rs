//! The definition's rules in CEL, evaluated as the API server evaluates them: a bound of a value is written once, at its field.

use std::sync::LazyLock;

use kube::core::cel::{CompiledSchema, Validator, compile_schema};
use serde_json::Value;

use super::Problems;
use crate::{Spec, definition};

static SPEC_RULES: LazyLock<CompiledSchema> = LazyLock::new(|| {
    compile_schema(
        &definition()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"],
    )
});

/// Reports each value that breaks the rule of its field. Rules about changes need the old object: the API server alone
/// evaluates them.
pub(super) fn check(spec: &Spec, problems: &mut Problems) {
    let spec = match serde_json::to_value(spec) {
        Ok(spec) => spec,
        Err(error) => {
            problems.add("spec", format!("can't be written as JSON: {error}"));
            return;
        }
    };
    let Err(errors) = Validator::new().validate_compiled(&SPEC_RULES, &spec, None) else {
        return;
    };
    let mut errors = errors.into_vec();
    // The compiled schema has no order of its own.
    errors.sort_by(|a, b| a.field_path.cmp(&b.field_path));
    for error in errors {
        let value = match spec.pointer(&format!("/{}", error.field_path.replace('.', "/"))) {
            Some(Value::String(text)) => text.clone(),
            // A limit of memory: `Resources::contradictions` reports it with the amounts, and also those of `podDefaults`.
            Some(Value::Object(_)) => continue,
            Some(other) => other.to_string(),
            None => String::new(),
        };
        let message = format!("{value} {}", error.message);
        problems.add(format!("spec.{}", error.field_path), message);
    }
}
