package lean

import (
	"reflect"
	"testing"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apiextensionsopenapi "k8s.io/apiextensions-apiserver/pkg/generated/openapi"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	aggregatoropenapi "k8s.io/kube-aggregator/pkg/generated/openapi"
	"k8s.io/kube-openapi/pkg/common"
	"k8s.io/kube-openapi/pkg/util"
	"k8s.io/kube-openapi/pkg/validation/spec"
	generatedopenapi "k8s.io/kubernetes/pkg/generated/openapi"
)

// TestOwnTypes wants the definitions that the small servers get to equal those among the
// definitions of all types. Of each server's, those that it serves must be among both.
func TestOwnTypes(t *testing.T) {
	all := generatedopenapi.GetOpenAPIDefinitions(spec.MustCreateRef)
	for _, server := range []struct {
		name   string
		own    common.GetOpenAPIDefinitions
		served any
	}{
		{"apiextensions", apiextensionsopenapi.GetOpenAPIDefinitions, apiextensionsv1.CustomResourceDefinition{}},
		{"aggregator", aggregatoropenapi.GetOpenAPIDefinitions, apiregistrationv1.APIService{}},
	} {
		compared := map[string]bool{}
		for definition, got := range server.own(spec.MustCreateRef) {
			want, found := all[definition]
			if !found {
				continue
			}
			compared[definition] = true
			if !reflect.DeepEqual(got, want) {
				t.Errorf("%s: %s is not as in the definitions of all", server.name, definition)
			}
		}
		if served := util.GetCanonicalTypeName(server.served); !compared[served] {
			t.Errorf("%s: %s is not among the %d definitions that were compared", server.name, served, len(compared))
		}
	}
}
