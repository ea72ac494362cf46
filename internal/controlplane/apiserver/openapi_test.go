package apiserver

import (
	"reflect"
	"testing"

	apiextensionsopenapi "k8s.io/apiextensions-apiserver/pkg/generated/openapi"
	aggregatoropenapi "k8s.io/kube-aggregator/pkg/generated/openapi"
	"k8s.io/kube-openapi/pkg/common"
	"k8s.io/kube-openapi/pkg/validation/spec"
	generatedopenapi "k8s.io/kubernetes/pkg/generated/openapi"
)

// TestOwnTypes wants the definitions that the small servers get to equal those among the
// definitions of all types.
func TestOwnTypes(t *testing.T) {
	all := generatedopenapi.GetOpenAPIDefinitions(spec.MustCreateRef)
	for name, own := range map[string]common.GetOpenAPIDefinitions{
		"apiextensions": apiextensionsopenapi.GetOpenAPIDefinitions,
		"aggregator":    aggregatoropenapi.GetOpenAPIDefinitions,
	} {
		for definition, got := range own(spec.MustCreateRef) {
			if want, found := all[definition]; found && !reflect.DeepEqual(got, want) {
				t.Errorf("%s: %s is not as in the definitions of all", name, definition)
			}
		}
	}
}
