package addons

import (
	"slices"
	"strings"
	"testing"

	"github.com/sirupsen/logrus"
	logrustest "github.com/sirupsen/logrus/hooks/test"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"

	"github.com/kedge-dev/kedge/internal/base/config"
)

// TestMetricsServer applies and removes the objects of the part metrics-server, unless an
// APIService points to the user's own.
func TestMetricsServer(t *testing.T) {
	const kedges = "apiservices/v1beta1.metrics.k8s.io"
	for name, test := range map[string]struct {
		theirs, disabled bool
		want             []string
	}{
		"applied":                  {false, false, []string{"patch " + kedges}},
		"removed":                  {false, true, []string{"delete " + kedges, "delete clusterroles/system:aggregated-metrics-reader"}},
		"left alone":               {true, false, nil},
		"left alone when disabled": {true, true, nil},
	} {
		t.Run(name, func(t *testing.T) {
			said := logrustest.NewLocal(logrus.StandardLogger())
			defer said.Reset()
			cluster := config.Default().Cluster
			if test.disabled {
				cluster.Disable = []string{string(config.MetricsServer)}
			}
			addons, client := New(Config{Cluster: cluster}), newFake()
			addons.client = client
			var did []string
			client.PrependReactor("*", "*", func(action clienttesting.Action) (bool, runtime.Object, error) {
				switch action := action.(type) {
				case clienttesting.GetActionImpl:
					if !strings.Contains(action.GetName(), "metrics") {
						return true, nil, apierrors.NewNotFound(action.GetResource().GroupResource(), action.GetName())
					}
					live := &unstructured.Unstructured{Object: map[string]any{}}
					live.SetAnnotations(map[string]string{digestAnnotation: "of some kedge"})
					if action.GetResource().Resource == "apiservices" {
						live.SetKind(apiServiceKind)
						if test.theirs {
							live.Object["spec"] = map[string]any{"service": map[string]any{"namespace": "kube-system", "name": "metrics-server"}}
						}
					}
					return true, live, nil
				case interface{ GetName() string }:
					did = append(did, action.(clienttesting.Action).GetVerb()+" "+action.(clienttesting.Action).GetResource().Resource+"/"+action.GetName())
				}
				return true, &unstructured.Unstructured{}, nil
			})
			objects, err := addons.objects()
			if err != nil {
				t.Fatal(err)
			}
			if failed, _, err := addons.applyAll(t.Context(), objects); len(failed) > 0 {
				t.Fatal(err)
			}
			if err := addons.removeDisabled(t.Context()); err != nil {
				t.Fatal(err)
			}
			for _, want := range test.want {
				if !slices.Contains(did, want) {
					t.Errorf("it did not %s: %q", want, did)
				}
			}
			touched := slices.ContainsFunc(did, func(what string) bool { return strings.HasSuffix(what, " "+kedges) })
			removed := slices.ContainsFunc(did, func(what string) bool { return strings.HasPrefix(what, "delete") && strings.Contains(what, "metrics") })
			if touched == test.theirs || removed != (test.disabled && !test.theirs) {
				t.Errorf("it did %q", did)
			}
			told := len(said.AllEntries()) > 0
			if told != (test.theirs && !test.disabled) || told && !strings.Contains(said.LastEntry().Message, "The Service kube-system/metrics-server answers the API group v1beta1.metrics.k8s.io") {
				t.Errorf("it said %v", said.AllEntries())
			}
		})
	}
}
