//! The records that a tablet server stores about its tablets, encoded and decoded. Their format is protobuf, so that fields can be
//! added. A record in which something is missing is refused: the engine's content is damaged.

use std::time::Duration;

use bytes::Bytes;
use percolator_protocol::types::Tablet;
use percolator_wire::v1;
use prost::Message as _;

use crate::Error;
use crate::arriving::ArrivalRecord;
use crate::peers::DepartedTablet;
use crate::tablets::GcSettingsCopy;

/// The record of a tablet that is not owned here any more.
pub(crate) enum LeftRecord {
    Departed(DepartedTablet),
    /// Others report the tablet, or it was merged: its id, and the epoch since which it is not here.
    Settled(u64, u64),
}

fn unreadable(detail: impl ToString) -> Error {
    Error::TabletRecord {
        detail: detail.to_string(),
    }
}

pub(crate) fn encode_tablet(tablet: &Tablet) -> Vec<u8> {
    v1::TabletInfo::from(tablet.clone()).encode_to_vec()
}

pub(crate) fn decode_tablet(value: Bytes) -> Result<Tablet, Error> {
    read_tablet(Some(v1::TabletInfo::decode(value).map_err(unreadable)?))
}

fn read_tablet(tablet: Option<v1::TabletInfo>) -> Result<Tablet, Error> {
    let tablet = tablet.ok_or_else(|| unreadable("it has no tablet"))?;
    tablet.try_into().map_err(unreadable)
}

pub(crate) fn encode_departed(departed: &DepartedTablet) -> Vec<u8> {
    let record = v1::LeftTablet {
        tablet: Some(departed.tablet.clone().into()),
        to: Some(departed.to.clone().into()),
        attempt: departed.attempt,
        settled: false,
    };
    record.encode_to_vec()
}

pub(crate) fn encode_settled(tablet: &Tablet) -> Vec<u8> {
    let record = v1::LeftTablet {
        tablet: Some(tablet.clone().into()),
        to: None,
        attempt: 0,
        settled: true,
    };
    record.encode_to_vec()
}

pub(crate) fn decode_left(value: Bytes) -> Result<LeftRecord, Error> {
    let record = v1::LeftTablet::decode(value).map_err(unreadable)?;
    let tablet = read_tablet(record.tablet)?;
    if record.settled {
        return Ok(LeftRecord::Settled(tablet.id, tablet.epoch));
    }
    let to = record.to.ok_or_else(|| unreadable("it went nowhere"))?;
    Ok(LeftRecord::Departed(DepartedTablet {
        tablet,
        to: to.try_into().map_err(unreadable)?,
        attempt: record.attempt,
    }))
}

pub(crate) fn encode_arrival(arrival: ArrivalRecord) -> Vec<u8> {
    let record = v1::ArrivingTablet {
        tablet: Some(arrival.tablet.into()),
        from: Some(arrival.from.into()),
        attempt: arrival.attempt,
        incarnation: arrival.incarnation,
        complete: arrival.is_complete,
        by_address: arrival.by_address,
        copy: arrival.copy,
        observed: arrival.observed,
    };
    record.encode_to_vec()
}

pub(crate) fn decode_arrival(value: Bytes) -> Result<ArrivalRecord, Error> {
    let record = v1::ArrivingTablet::decode(value).map_err(unreadable)?;
    let from = record
        .from
        .ok_or_else(|| unreadable("it is from nowhere"))?;
    Ok(ArrivalRecord {
        tablet: read_tablet(record.tablet)?,
        from: from.try_into().map_err(unreadable)?,
        attempt: record.attempt,
        incarnation: record.incarnation,
        is_complete: record.complete,
        by_address: record.by_address,
        copy: record.copy,
        observed: record.observed,
    })
}

/// The record of a tablet's observed columns.
pub(crate) fn encode_observed(table: u32, columns: Vec<Bytes>) -> Vec<u8> {
    let record = v1::ObservedColumns {
        table_id: table,
        columns,
    };
    record.encode_to_vec()
}

/// The table and the observed columns of a tablet. `None`: the record can't be read.
pub(crate) fn decode_observed(value: Bytes) -> Option<(u32, Vec<Bytes>)> {
    let record = v1::ObservedColumns::decode(value).ok()?;
    Some((record.table_id, record.columns))
}

pub(crate) fn encode_settings(settings: GcSettingsCopy) -> Vec<u8> {
    v1::GcSettings::from(settings).encode_to_vec()
}

pub(crate) fn decode_settings(value: Bytes) -> Result<GcSettingsCopy, Error> {
    let settings = v1::GcSettings::decode(value).map_err(unreadable)?;
    Ok(settings.into())
}

impl From<v1::GcSettings> for GcSettingsCopy {
    fn from(settings: v1::GcSettings) -> Self {
        Self {
            revision: settings.revision,
            retention: settings.retention_ms.map(Duration::from_millis),
            hold_max: settings.hold_ms_max.map(Duration::from_millis),
            paused: settings.paused,
        }
    }
}

impl From<GcSettingsCopy> for v1::GcSettings {
    fn from(settings: GcSettingsCopy) -> Self {
        let millis = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        Self {
            revision: settings.revision,
            retention_ms: settings.retention.map(millis),
            hold_ms_max: settings.hold_max.map(millis),
            paused: settings.paused,
        }
    }
}
