// What a dashboard of ours is by Grafana's published types: a dashboard of time series, each asked of Prometheus. A test of
// xtask has TypeScript hold every dashboard of the chart against it.
import type { Dashboard, DataSourceRef, FieldConfig, FieldConfigSource, Panel } from '@grafana/schema';
import type {
  FieldConfig as TimeSeriesField,
  Options as TimeSeriesOptions,
} from '@grafana/schema/dist/esm/raw/composable/timeseries/panelcfg/x/TimeSeriesPanelCfg_types.gen';

// What JSON has where TypeScript has enumerations: their values.
type Json<T> = T extends string
  ? `${T}`
  : T extends (infer Element)[]
    ? Json<Element>[]
    : T extends object
      ? { [Field in keyof T]: Json<T[Field]> }
      : T;

interface TimeSeries extends Omit<Panel, 'datasource' | 'fieldConfig' | 'options' | 'targets' | 'type'> {
  type: 'timeseries';
  datasource: DataSourceRef;
  fieldConfig: Omit<FieldConfigSource, 'defaults'> & { defaults: Omit<FieldConfig, 'custom'> & { custom: Partial<TimeSeriesField> } };
  options: TimeSeriesOptions;
  targets: { refId: string; datasource: DataSourceRef; expr: string; legendFormat: string }[];
}

export type Board = Json<Omit<Dashboard, 'panels'> & { panels: TimeSeries[] }>;
