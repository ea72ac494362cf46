package restriction

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/authentication/user"

	"github.com/kedge-dev/kedge/internal/base/gateways"
)

// TestHosts changes the hosts of a namespace. A user who may do everything in the namespace may
// change the rest of it.
func TestHosts(t *testing.T) {
	namespace := func(hosts, other string) *corev1.Namespace {
		made := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "shop", Annotations: map[string]string{"other": other}}}
		if hosts != "" {
			made.Annotations[gateways.HostsAnnotation] = hosts
		}
		return made
	}
	for name, test := range map[string]struct {
		who         user.Info
		before, now *corev1.Namespace
		allowed     bool
	}{
		"an administrator":         {admin, namespace("", ""), namespace("bank.example", ""), true},
		"a tenant":                 {tenant, namespace("", ""), namespace("bank.example", ""), false},
		"a tenant, one more":       {tenant, namespace("shop.example", ""), namespace("shop.example,bank.example", ""), false},
		"a tenant, none":           {tenant, namespace("shop.example", ""), namespace("", ""), false},
		"a tenant, something else": {tenant, namespace("shop.example", ""), namespace("shop.example", "x"), true},
		"a tenant, a new one":      {tenant, nil, namespace("bank.example", ""), false},
		"a tenant, without":        {tenant, nil, namespace("", "x"), true},
	} {
		r := request{who: test.who, operation: admission.Update, resource: namespaces, namespace: "shop", object: test.now}
		if r.old = test.before; test.before == nil {
			r.operation, r.old = admission.Create, nil
		}
		_, err := r.run(t, false)
		if (err == nil) != test.allowed || err != nil && (!apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "ask an administrator")) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
