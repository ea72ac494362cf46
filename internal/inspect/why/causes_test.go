package why

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/utils/ptr"
)

// TestCauses looks at an Ingress whose Service selects nothing. Each of the two is named. A kind that the API does not tell is in the error.
func TestCauses(t *testing.T) {
	e := readExample(t, "testdata/ingress-class-missing.yaml")
	for _, object := range e.objects {
		switch object := object.(type) {
		case *networkingv1.Ingress:
			object.Spec.IngressClassName = ptr.To("kedge")
		case *corev1.Service:
			object.Spec.Selector = map[string]string{"app": "other"}
		}
	}
	clients := e.clients(t)
	kinds := []string{"Ingress", "Service"}
	causes, err := Causes(t.Context(), clients, "default", kinds)
	if err != nil || len(causes) != 2 {
		t.Fatalf("there are %d causes, %v", len(causes), err)
	}
	for _, c := range causes {
		self, ok := c.Self.(metav1.Object)
		if !ok || c.Cause().Rule != "selector-matches-nothing" || self.GetUID() == "" {
			t.Errorf("got %+v of %v", c.Cause(), c.Self)
		}
	}
	clients.Kubernetes.(*fake.Clientset).PrependReactor("list", "ingresses", func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, nil, apierrors.NewInternalError(errors.New("damaged"))
	})
	if causes, err := Causes(t.Context(), clients, "default", kinds); len(causes) != 1 || err == nil || !strings.Contains(err.Error(), "damaged") {
		t.Errorf("without Ingresses there are %d causes, %v", len(causes), err)
	}
}

// TestClassesUnlisted asks about Ingresses as a user who may get a class by its name, and may not list classes.
func TestClassesUnlisted(t *testing.T) {
	client := readExample(t, "testdata/ingress-class-missing.yaml").cluster()
	client.PrependReactor("list", "ingressclasses", func(action clienttesting.Action) (bool, runtime.Object, error) {
		return true, nil, apierrors.NewForbidden(action.GetResource().GroupResource(), "", errors.New("no"))
	})
	for _, test := range []struct{ class, says, do string }{
		{"kedge", "", ""},
		{"nginx", "there is no IngressClass nginx, so no controller serves the Ingress", "correct spec.ingressClassName of the Ingress. IngressClasses of the cluster: kubectl get ingressclass"},
		{"", "the Ingress names no IngressClass, and no controller has given it an address", "set spec.ingressClassName of the Ingress"},
	} {
		ingress, err := client.NetworkingV1().Ingresses("default").Get(t.Context(), "shop", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		ingress.Spec.IngressClassName = nil
		if test.class != "" {
			ingress.Spec.IngressClassName = &test.class
		}
		if _, err := client.NetworkingV1().Ingresses("default").Update(t.Context(), ingress, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		report, err := Explain(t.Context(), Clients{Kubernetes: client, Now: func() time.Time { return now }}, Object{"Ingress", "default", "shop"})
		if err != nil {
			t.Fatal(err)
		}
		var cause Step
		if c := report.Cause(); c != nil {
			cause = *c
		}
		if cause.Says != test.says || cause.Do != test.do {
			t.Errorf("%s: got %q, do %q", test.class, cause.Says, cause.Do)
		}
	}
}

// TestAuthor has an Event that repeats what this package said of an Ingress before its class was corrected.
func TestAuthor(t *testing.T) {
	e := readExample(t, "testdata/ingress-refused.yaml")
	for _, object := range e.objects {
		if event, ok := object.(*corev1.Event); ok {
			event.Source.Component = Author
		}
	}
	object, err := Parse("default", e.ask)
	if err != nil {
		t.Fatal(err)
	}
	report, err := Explain(t.Context(), e.clients(t), object)
	if err != nil {
		t.Fatal(err)
	}
	if slices.ContainsFunc(report.Steps, func(s Step) bool { return s.Rule != "" }) {
		t.Errorf("it takes its own word for that of a controller: %+v", report.Steps)
	}
}
