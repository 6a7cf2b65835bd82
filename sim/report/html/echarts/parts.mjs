// What reports and the explorer draw with; README.md tells how to build it.
import {use} from 'echarts/core';
import {LineChart, BarChart, ScatterChart, HeatmapChart, CustomChart} from 'echarts/charts';
import {GridComponent, TooltipComponent, LegendScrollComponent, LegendComponent, DataZoomComponent, ToolboxComponent, MarkLineComponent, MarkPointComponent, VisualMapComponent, AriaComponent, DatasetComponent, GraphicComponent} from 'echarts/components';
import {SVGRenderer} from 'echarts/renderers';
use([LineChart, BarChart, ScatterChart, HeatmapChart, CustomChart, GridComponent, TooltipComponent, LegendComponent, LegendScrollComponent, DataZoomComponent, ToolboxComponent, MarkLineComponent, MarkPointComponent, VisualMapComponent, AriaComponent, DatasetComponent, GraphicComponent, SVGRenderer]);
export {init, getInstanceByDom, version} from 'echarts/core';
