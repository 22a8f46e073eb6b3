//! W3C trace context as a header says it: `traceparent: 00-TRACE_ID-SPAN_ID-FLAGS`, in hexadecimal digits.
//!
//! Source: <https://www.w3.org/TR/trace-context/>, 3.2.

use percolator_protocol::types::TraceParent;

use crate::v1::TraceContext;

const SAMPLED: u8 = 1;

impl TraceContext {
    /// The header's name.
    pub const HEADER: &str = "traceparent";

    /// Of a span in a trace.
    pub fn new(trace_id: u128, span_id: u64) -> Self {
        Self {
            trace_id_high: (trace_id >> 64) as u64,
            trace_id_low: trace_id as u64,
            span_id,
        }
    }

    /// The trace's id.
    pub fn trace_id(&self) -> u128 {
        u128::from(self.trace_id_high) << 64 | u128::from(self.trace_id_low)
    }

    /// The value of the header.
    pub fn header(&self) -> String {
        format!(
            "00-{:032x}-{:016x}-{SAMPLED:02x}",
            self.trace_id(),
            self.span_id
        )
    }

    /// Of a header of this version or a later one. `None`: the sender doesn't sample the trace, or the header is
    /// none; a trace is no reason to refuse a request.
    pub fn of_header(header: &str) -> Option<Self> {
        let mut fields = header.split('-');
        let mut hex = |digits: usize| {
            let field = fields.next()?;
            let is_hex = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
            (field.len() == digits && field.bytes().all(is_hex)).then_some(field)
        };
        let version = hex(2)?;
        let trace_id = u128::from_str_radix(hex(32)?, 16).ok()?;
        let span_id = u64::from_str_radix(hex(16)?, 16).ok()?;
        let flags = u8::from_str_radix(hex(2)?, 16).ok()?;
        let ended = fields.next().is_none();
        let valid = version != "ff" && (ended || version != "00");
        let sampled = flags & SAMPLED != 0 && trace_id != 0 && span_id != 0;
        (valid && sampled).then(|| Self::new(trace_id, span_id))
    }
}

impl From<TraceParent> for TraceContext {
    fn from(parent: TraceParent) -> Self {
        Self::new(parent.trace_id, parent.span_id)
    }
}

impl From<&TraceContext> for TraceParent {
    fn from(context: &TraceContext) -> Self {
        Self {
            trace_id: context.trace_id(),
            span_id: context.span_id,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEADER: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

    #[test]
    fn a_header_is_read_as_it_was_written() {
        let context = TraceContext::of_header(HEADER).unwrap();
        assert_eq!(
            context.trace_id(),
            0x4bf9_2f35_77b3_4da6_a3ce_929d_0e0e_4736
        );
        assert_eq!(context.span_id, 0x00f0_67aa_0ba9_02b7);
        assert_eq!(context.header(), HEADER);
        let later = HEADER.replacen("00", "01", 1) + "-more";
        assert_eq!(TraceContext::of_header(&later), Some(context));
    }

    #[test]
    fn what_is_not_sampled_or_no_header_is_none() {
        let zero = "0".repeat(32);
        for header in [
            "",
            "00",
            &HEADER.replace("-01", "-00"),
            &HEADER.replacen("00", "ff", 1),
            &HEADER.replace("4bf92f3577b34da6a3ce929d0e0e4736", &zero),
            &HEADER.replace("4bf9", "4BF9"),
            &HEADER.replace("4bf9", "+bf9"),
            &format!("{HEADER}-more"),
            &HEADER[..54],
        ] {
            assert_eq!(TraceContext::of_header(header), None, "{header}");
        }
    }
}
