package resourcemetrics

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// table is what `kubectl get podmetrics` prints. The columns are those of metrics-server.
type table struct{ metav1.Table }

func newTable(options runtime.Object) *table {
	t := &table{}
	if options, ok := options.(*metav1.TableOptions); ok && options.NoHeaders {
		return t
	}
	t.ColumnDefinitions = []metav1.TableColumnDefinition{
		{Name: "Name", Type: "string", Format: "name", Description: "Name of the resource"},
		{Name: string(corev1.ResourceCPU), Type: "string", Format: "quantity", Description: "Processor time per time"},
		{Name: string(corev1.ResourceMemory), Type: "string", Format: "quantity", Description: "Working set"},
		{Name: "Window", Type: "string", Format: "duration", Description: "Time over which processor time was measured"},
	}
	return t
}

// add adds a row for an object.
func (t *table) add(object runtime.Object, name string, window metav1.Duration, usage corev1.ResourceList) {
	t.Rows = append(t.Rows, metav1.TableRow{
		Cells:  []any{name, usage.Cpu().String(), usage.Memory().String(), window.Duration.String()},
		Object: runtime.RawExtension{Object: object},
	})
}
