package dns

import (
	"context"
	"testing"

	"github.com/coredns/coredns/plugin/kubernetes"
	"github.com/coredns/coredns/plugin/kubernetes/object"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/kedge-dev/kedge/internal/base/objectcache"
)

var (
	_ records = &clusterRecords{}

	someServices = []*corev1.Service{
		{ObjectMeta: metav1.ObjectMeta{Name: "web", Namespace: "a", ResourceVersion: "1"}, Spec: corev1.ServiceSpec{
			Type: corev1.ServiceTypeLoadBalancer, ClusterIP: "10.43.0.5", ClusterIPs: []string{"10.43.0.5", "fd00::5"},
			Ports:       []corev1.ServicePort{{Name: "http", Port: 80, Protocol: corev1.ProtocolTCP}},
			ExternalIPs: []string{"198.51.100.7"},
		}, Status: corev1.ServiceStatus{LoadBalancer: corev1.LoadBalancerStatus{Ingress: []corev1.LoadBalancerIngress{{IP: "198.51.100.8"}, {Hostname: "lb.example.com"}}}}},
		{ObjectMeta: metav1.ObjectMeta{Name: "none", Namespace: "a"}, Spec: corev1.ServiceSpec{ClusterIP: corev1.ClusterIPNone}},
		{ObjectMeta: metav1.ObjectMeta{Name: "elsewhere", Namespace: "a"}, Spec: corev1.ServiceSpec{Type: corev1.ServiceTypeExternalName, ExternalName: "example.com"}},
	}

	someSlices = []*discoveryv1.EndpointSlice{
		{
			ObjectMeta:  metav1.ObjectMeta{Name: "none-1", Namespace: "a", ResourceVersion: "2", Labels: map[string]string{discoveryv1.LabelServiceName: "none"}},
			AddressType: discoveryv1.AddressTypeIPv4,
			Endpoints: []discoveryv1.Endpoint{
				{Addresses: []string{"10.42.0.7", "10.42.0.8"}, Hostname: new("first"), NodeName: new("node"), TargetRef: &corev1.ObjectReference{Name: "pod"}},
				{Addresses: []string{"10.42.0.9"}, Conditions: discoveryv1.EndpointConditions{Ready: new(false)}},
			},
			Ports: []discoveryv1.EndpointPort{{Name: new("http"), Port: new(int32(80)), Protocol: new(corev1.ProtocolTCP)}, {}},
		},
		{ObjectMeta: metav1.ObjectMeta{Name: "other", Namespace: "b"}, AddressType: discoveryv1.AddressTypeIPv4, Endpoints: []discoveryv1.Endpoint{{Addresses: []string{"10.42.0.7", "10.42.0.7"}}}},
	}
)

// TestRecords compares the records with those that CoreDNS makes of the same objects.
func TestRecords(t *testing.T) {
	for _, service := range someServices {
		before := service.DeepCopy()
		want, err := object.ToService(service.DeepCopy())
		must(t, err)
		if got := recordOf(service); !equality.Semantic.DeepEqual(got, want) {
			t.Errorf("%s: got %+v, want %+v", service.Name, got, want)
		}
		if !equality.Semantic.DeepEqual(service, before) {
			t.Errorf("the Service %s was changed", service.Name)
		}
	}
	for _, slice := range someSlices {
		before := slice.DeepCopy()
		want, err := object.EndpointSliceToEndpoints(slice.DeepCopy())
		must(t, err)
		if got := endpointsOf(slice); !equality.Semantic.DeepEqual(got, want) {
			t.Errorf("%s: got %+v, want %+v", slice.Name, got, want)
		}
		if !equality.Semantic.DeepEqual(slice, before) {
			t.Errorf("the EndpointSlice %s was changed", slice.Name)
		}
	}
}

// TestRecordsFollow asks for records in every way, while the objects change.
func TestRecordsFollow(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	api := fake.NewClientset(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "a"}}, someServices[0], someServices[1], someServices[2], someSlices[0], someSlices[1])
	r, end, err := newRecords(ctx, objectcache.Own(api))
	must(t, err)
	defer end()
	eventually(t, "true", func() string { return map[bool]string{true: "true"}[r.HasSynced()] })

	services := func(found []*object.Service) (names string) {
		for _, one := range found {
			names += one.Namespace + "/" + one.Name + " "
		}
		return names
	}
	endpoints := func(found []*object.Endpoints) (names string) {
		for _, one := range found {
			names += one.Namespace + "/" + one.Name + " "
		}
		return names
	}
	for what, test := range map[string]struct{ got, want string }{
		"Service":                     {services(r.SvcIndex("web.a")), "a/web "},
		"missing Service":             {services(r.SvcIndex("web.b")), ""},
		"no name":                     {services(r.SvcIndex("web")), ""},
		"Service by address":          {services(r.SvcIndexReverse("10.43.0.5")), "a/web "},
		"Service by IPv6":             {services(r.SvcIndexReverse("fd00::5")), "a/web "},
		"Service by external address": {services(r.SvcIndexReverse("198.51.100.7")), ""},
		"no address":                  {services(r.SvcIndexReverse("None")), ""},
		"endpoints":                   {endpoints(r.EpIndex("none.a")), "a/none-1 "},
		"endpoints by address":        {endpoints(r.EpIndexReverse("10.42.0.8")), "a/none-1 "},
		"endpoints that is not ready": {endpoints(r.EpIndexReverse("10.42.0.9")), ""},
	} {
		if test.got != test.want {
			t.Errorf("%s: got %q, want %q", what, test.got, test.want)
		}
	}
	if found := r.EpIndexReverse("10.42.0.7"); len(found) != 2 {
		t.Errorf("got %d slices with an address of two, want 2", len(found))
	}
	if _, err := r.GetNamespaceByName("a"); err != nil {
		t.Error(err)
	}
	if _, err := r.GetNamespaceByName("b"); err == nil {
		t.Error("a namespace is known that does not exist")
	}

	moved := someServices[0].DeepCopy()
	moved.Spec.ClusterIPs = []string{"10.43.0.6"}
	_, err = api.CoreV1().Services("a").Update(ctx, moved, metav1.UpdateOptions{})
	must(t, err)
	eventually(t, "a/web ", func() string { return services(r.SvcIndexReverse("10.43.0.6")) })
	if got := services(r.SvcIndexReverse("10.43.0.5")); got != "" {
		t.Errorf("the former address still leads to %s", got)
	}
	for _, slice := range someSlices {
		must(t, api.DiscoveryV1().EndpointSlices(slice.Namespace).Delete(ctx, slice.Name, metav1.DeleteOptions{}))
	}
	must(t, api.CoreV1().Services("a").Delete(ctx, "web", metav1.DeleteOptions{}))
	eventually(t, "", func() string {
		return endpoints(r.EpIndexReverse("10.42.0.7")) + endpoints(r.EpIndex("none.a")) + services(r.SvcIndexReverse("10.43.0.6")) + services(r.SvcIndex("web.a"))
	})
	r.mu.RLock()
	defer r.mu.RUnlock()
	if len(r.serviceOf)+len(r.slicesOf)+len(r.slicesWith) != 0 {
		t.Errorf("the indexes still have %v %v %v", r.serviceOf, r.slicesOf, r.slicesWith)
	}
}

// TestSerial checks which changes give the zone another serial number.
func TestSerial(t *testing.T) {
	r := emptyRecords()
	service, slice := someServices[0], someSlices[0]
	labelled, otherPort := service.DeepCopy(), service.DeepCopy()
	labelled.Labels = map[string]string{"a": "b"}
	otherPort.Spec.Ports[0].Port = 81
	moved, other := slice.DeepCopy(), slice.DeepCopy()
	moved.Endpoints[0].NodeName = new("elsewhere")
	other.Endpoints[1].Conditions.Ready = nil
	ofServices := following(r, r.addService, r.removeService, sameService)
	ofSlices := following(r, r.addSlice, r.removeSlice, sameEndpoints)
	for _, step := range []struct {
		what string
		do   func()
		want bool
	}{
		{"a Service comes", func() { ofServices.OnAdd(service, true) }, true},
		{"a Service gets a label", func() { ofServices.OnUpdate(service, labelled) }, false},
		{"a Service gets a port", func() { ofServices.OnUpdate(labelled, otherPort) }, true},
		{"a Service goes", func() { ofServices.OnDelete(otherPort) }, true},
		{"a slice comes", func() { ofSlices.OnAdd(slice, true) }, true},
		{"an endpoint moves", func() { ofSlices.OnUpdate(slice, moved) }, false},
		{"an endpoint is ready", func() { ofSlices.OnUpdate(moved, other) }, true},
		{"a slice goes", func() { ofSlices.OnDelete(other) }, true},
	} {
		r.modified.Store(0)
		step.do()
		if got := r.Modified(kubernetes.ModifiedInternal) != 0; got != step.want {
			t.Errorf("%s: another serial: %v, want %v", step.what, got, step.want)
		}
	}
}
