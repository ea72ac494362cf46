package registration

import (
	"context"
	"errors"
	"net/netip"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/kedge-dev/kedge/internal/base/objectcache"
	"github.com/kedge-dev/kedge/internal/testutil"
)

// newClient returns a fake API server that gives Secrets a UID and a time, as a real one
// does.
func newClient(objects ...runtime.Object) *fake.Clientset {
	client := fake.NewClientset(objects...)
	made := 0
	client.PrependReactor("create", "secrets", func(action clienttesting.Action) (bool, runtime.Object, error) {
		made++
		secret := action.(clienttesting.CreateAction).GetObject().(*corev1.Secret)
		secret.UID = types.UID(strings.Repeat("u", made))
		secret.CreationTimestamp = metav1.Now()
		return false, nil, nil
	})
	// The fake API server ignores the precondition.
	client.PrependReactor("patch", "secrets", func(action clienttesting.Action) (bool, runtime.Object, error) {
		patch := action.(clienttesting.PatchAction)
		secret, err := client.Tracker().Get(action.GetResource(), namespace, patch.GetName())
		if err == nil && !strings.Contains(string(patch.GetPatch()), `"uid":"`+string(secret.(*corev1.Secret).UID)+`"`) {
			err = apierrors.NewConflict(corev1.Resource("secrets"), patch.GetName(), errors.New("another UID"))
		}
		return err != nil, nil, err
	})
	return client
}

func nodeNamed(name string, addresses ...string) *corev1.Node {
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name)}}
	for _, address := range addresses {
		node.Status.Addresses = append(node.Status.Addresses, corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: address})
	}
	return node
}

// start runs a registry until the test ends.
func start(t *testing.T, client kubernetes.Interface) *Registry {
	t.Helper()
	return run(t, New(), client)
}

func run(t *testing.T, r *Registry, client kubernetes.Interface) *Registry {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	ready, ended := make(chan struct{}), make(chan error, 1)
	go func() { ended <- r.Follow(client, objectcache.Own(client)).Run(ctx, func() { close(ready) }) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	<-ready
	return r
}

func claimOf(node, password string, addresses ...string) Claim {
	claim := Claim{Node: node, Password: password, CertificatesEnd: time.Now().Add(time.Hour)}
	for _, address := range addresses {
		claim.Addresses = append(claim.Addresses, netip.MustParseAddr(address))
	}
	return claim
}

func eventually(t *testing.T, what string, is func() bool) {
	t.Helper()
	for range 1000 {
		if is() {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Fatalf("waited in vain: %s", what)
}

func genuine() error { return nil }

// TestJoin makes nodes join one after the other.
func TestJoin(t *testing.T) {
	testutil.CheckLeaks(t)
	client := newClient(nodeNamed("known"))
	uids := map[string]string{}
	for _, step := range []struct {
		what, node, password string
		refused              bool
	}{
		{"the first with the name", "known", "one", false},
		{"the same again", "known", "one", false},
		{"another", "known", "two", true},
		{"one without a password", "known", "", true},
		{"the first, while its Node is on the way", "fresh", "one", false},
		{"the same again, before its Node", "fresh", "one", false},
		{"another, while the first is on its way", "fresh", "two", true},
	} {
		r := New()
		r.known, r.client = true, client
		uid, err := r.Join(t.Context(), claimOf(step.node, step.password))
		var taken *TakenError
		if errors.As(err, &taken) != step.refused || !step.refused && err != nil {
			t.Errorf("%s: %s: got error %v, want refused %t", step.node, step.what, err, step.refused)
		}
		if before := uids[step.node]; err == nil && before != "" && before != uid {
			t.Errorf("%s: %s: it has another registration", step.node, step.what)
		}
		if err == nil {
			uids[step.node] = uid
		}
	}
	secret, err := client.CoreV1().Secrets(namespace).Get(t.Context(), "known"+suffix, metav1.GetOptions{})
	if err != nil || strings.Contains(secret.String(), "one") {
		t.Errorf("got Secret %v, %v, want it without the password", secret, err)
	}
}

// TestServerNode: a server gets its name back from any other node.
func TestServerNode(t *testing.T) {
	client := newClient(nodeNamed("server"))
	refusals := 3
	client.PrependReactor("get", "secrets", func(clienttesting.Action) (bool, runtime.Object, error) {
		refusals--
		return refusals >= 0, nil, apierrors.NewForbidden(corev1.Resource("secrets"), "server", nil)
	})
	for _, password := range []string{"one", "two", "two"} {
		if err := registerWhenAllowed(t.Context(), client, claimOf("server", password)); err != nil {
			t.Errorf("register with the password %s: %v", password, err)
		}
	}
	r := New()
	r.known, r.client = true, client
	if _, err := r.Join(t.Context(), claimOf("server", "one")); err == nil {
		t.Error("a node gets the name of a server")
	}
}

// TestLife follows a node from its join to its deletion.
func TestLife(t *testing.T) {
	testutil.CheckLeaks(t)
	client := newClient()
	r := New()
	if err := r.Check(t.Context(), "edge", "u", genuine); !errors.Is(err, ErrNotNow) {
		t.Errorf("before anything is known: %v", err)
	}
	if _, err := r.Join(t.Context(), claimOf("edge", "one", "192.0.2.1")); !errors.Is(err, ErrNotNow) {
		t.Errorf("before anything is known: %v", err)
	}
	ended := make(chan string, 100)
	r.OnEnd(func(node string) { ended <- node })
	run(t, r, client)
	first, err := r.Join(t.Context(), claimOf("edge", "one", "192.0.2.1"))
	if err != nil {
		t.Fatal(err)
	}
	// The other server knows the node at once, and so does this one.
	for name, registry := range map[string]*Registry{"here": r, "another server": start(t, client)} {
		if err := registry.Check(t.Context(), "edge", first, genuine); err != nil {
			t.Errorf("%s: a node that has joined: %v", name, err)
		}
	}
	for name, test := range map[string]struct{ node, uid string }{
		"of another registration": {"edge", "other"},
		"of an older kedge":       {"edge", ""},
		"of another node":         {"other", first},
	} {
		if err := r.Check(t.Context(), test.node, test.uid, genuine); !errors.Is(err, ErrRefused) {
			t.Errorf("a certificate %s: %v", name, err)
		}
	}

	if _, err := client.CoreV1().Nodes().Create(t.Context(), nodeNamed("edge"), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the Node to have the UID", func() bool {
		node, err := client.CoreV1().Nodes().Get(t.Context(), "edge", metav1.GetOptions{})
		all, failed := List(t.Context(), client)
		return err == nil && failed == nil && node.Annotations[NodeAnnotation] == first && all[0].Registered
	})
	if err := client.CoreV1().Nodes().Delete(t.Context(), "edge", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the registration to be gone", func() bool {
		return errors.Is(r.Check(t.Context(), "edge", first, genuine), ErrRefused)
	})
	if name := <-ended; name != "edge" {
		t.Errorf("told of the end of %s", name)
	}
	if _, err := r.Renew(t.Context(), first, claimOf("edge", "one")); !errors.Is(err, ErrRefused) {
		t.Errorf("a deleted node renews its certificates: %v", err)
	}
	second, err := r.Join(t.Context(), claimOf("edge", "two"))
	if err != nil || second == first {
		t.Errorf("the name of a deleted node: %q after %q, %v", second, first, err)
	}
	if err := r.Check(t.Context(), "edge", first, genuine); !errors.Is(err, ErrRefused) {
		t.Errorf("the certificates of the former node: %v", err)
	}
}

// TestStrangersAskNobody: the API server is asked only for genuine certificates, and only
// once.
func TestStrangersAskNobody(t *testing.T) {
	client := newClient()
	r := New()
	r.known, r.client = true, client
	stranger := errors.New("not of this cluster")
	if err := r.Check(t.Context(), "edge", "u", func() error { return stranger }); !errors.Is(err, ErrRefused) || len(client.Actions()) > 0 {
		t.Errorf("a stranger: %v, %v", err, client.Actions())
	}
	for range 3 {
		if err := r.Check(t.Context(), "edge", "u", genuine); !errors.Is(err, ErrRefused) || len(client.Actions()) != 1 {
			t.Errorf("a former node: %v, %v", err, client.Actions())
		}
	}
}

// kept puts a registration into the API, as an earlier kedge has left it or at another
// time.
func kept(t *testing.T, client kubernetes.Interface, node, password string, change func(*corev1.Secret)) {
	t.Helper()
	uid, err := create(t.Context(), client, claimOf(node, password))
	if err != nil {
		t.Fatal(err)
	}
	secret, err := client.CoreV1().Secrets(namespace).Get(t.Context(), node+suffix, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	change(secret)
	secret.UID = types.UID(uid)
	if _, err := client.CoreV1().Secrets(namespace).Update(t.Context(), secret, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
}

// older turns a registration into one of an older kedge, whose certificates carry no UID.
func older(secret *corev1.Secret) {
	secret.Annotations = map[string]string{registeredAnnotation: "true"}
}

// TestLate: a node that joins and never registers keeps its name only for a while.
func TestLate(t *testing.T) {
	testutil.CheckLeaks(t)
	client := newClient()
	kept(t, client, "ghost", "one", func(s *corev1.Secret) { s.CreationTimestamp = metav1.NewTime(time.Now().Add(-Patience)) })
	kept(t, client, "slow", "one", func(s *corev1.Secret) { s.CreationTimestamp = metav1.NewTime(time.Now().Add(-Patience / 2)) })
	r := start(t, client)
	if err := r.Check(t.Context(), "ghost", "u", genuine); !errors.Is(err, ErrRefused) {
		t.Errorf("one that never came: %v", err)
	}
	if err := r.Check(t.Context(), "slow", "uu", genuine); err != nil {
		t.Errorf("one that is slow: %v", err)
	}
	eventually(t, "the name to be free", func() bool {
		all, err := List(t.Context(), client)
		return err == nil && len(all) == 1 && all[0].Node == "slow"
	})
	if _, err := r.Join(t.Context(), claimOf("ghost", "two")); err != nil {
		t.Errorf("the name of one that never came: %v", err)
	}
}

// TestOlder: a node that an older kedge has admitted stays admitted, and gets new
// certificates.
func TestOlder(t *testing.T) {
	testutil.CheckLeaks(t)
	client := newClient(nodeNamed("edge", "192.0.2.1"), nodeNamed("other"))
	kept(t, client, "edge", "one", older)
	kept(t, client, "gone", "one", older)
	r := start(t, client)
	if err := r.Check(t.Context(), "edge", "", genuine); err != nil {
		t.Errorf("its old certificates: %v", err)
	}
	eventually(t, "the registration of a node deleted before to be gone", func() bool {
		all, err := List(t.Context(), client)
		return err == nil && len(all) == 1 && all[0].Node == "edge"
	})
	var owned *AddressError
	if _, err := r.Join(t.Context(), claimOf("other", "three", "192.0.2.1")); !errors.As(err, &owned) || owned.Owner != "edge" {
		t.Errorf("another node joins with the address of edge: got error %v, want it refused", err)
	}
	var taken *TakenError
	if _, err := r.Renew(t.Context(), "", claimOf("edge", "two", "192.0.2.1")); !errors.As(err, &taken) {
		t.Errorf("renew with a wrong password: got error %v, want it refused", err)
	}
	// The node's agent may be of an older kedge, too.
	uid, err := r.Renew(t.Context(), "", claimOf("edge", "", "192.0.2.1"))
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, "its old certificates to be refused", func() bool {
		return errors.Is(r.Check(t.Context(), "edge", "", genuine), ErrRefused)
	})
	if err := r.Check(t.Context(), "edge", uid, genuine); err != nil {
		t.Errorf("its new certificates: %v", err)
	}
	if _, err := r.Renew(t.Context(), uid, claimOf("edge", "")); !errors.As(err, &taken) {
		t.Errorf("renew without a password: got error %v, want it refused", err)
	}
	if _, err := r.Renew(t.Context(), uid, claimOf("edge", "one", "192.0.2.1")); err != nil {
		t.Errorf("renew for the second time: %v", err)
	}
	if owner, ok := r.Owner(netip.MustParseAddr("192.0.2.1")); !ok || owner != "edge" {
		t.Errorf("got owner %q of the address, want edge", owner)
	}
}

// TestAddresses: two machines never have the same address, and a machine that changes its
// node's name keeps its addresses.
func TestAddresses(t *testing.T) {
	testutil.CheckLeaks(t)
	client := newClient(nodeNamed("first"))
	r := start(t, client)
	address := netip.MustParseAddr("192.0.2.1")
	if _, err := r.Join(t.Context(), claimOf("first", "one", "192.0.2.1")); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the address to be known", func() bool { owner, ok := r.Owner(address); return ok && owner == "first" })
	var owned *AddressError
	if _, err := r.Join(t.Context(), claimOf("other", "two", "192.0.2.2", "192.0.2.1")); !errors.As(err, &owned) || owned.Owner != "first" {
		t.Errorf("another machine joins with the address of first: got error %v, want it refused", err)
	}
	if _, err := r.Join(t.Context(), claimOf("renamed", "one", "192.0.2.1")); err != nil {
		t.Errorf("the machine under another name: %v", err)
	}
	eventually(t, "nobody to be known for the address", func() bool { _, ok := r.Owner(address); return !ok })
	if err := client.CoreV1().Nodes().Delete(t.Context(), "first", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the address to be the other name's", func() bool { owner, ok := r.Owner(address); return ok && owner == "renamed" })
}

// TestRevoke: a revoked node is refused, and nobody gets its name until its Node is
// deleted.
func TestRevoke(t *testing.T) {
	testutil.CheckLeaks(t)
	server := nodeNamed("server")
	server.Labels = map[string]string{"node-role.kubernetes.io/etcd": "true"}
	client := newClient(nodeNamed("edge"), server)
	r := start(t, client)
	uid, err := r.Join(t.Context(), claimOf("edge", "one", "192.0.2.1"))
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, "the Node to be seen", func() bool {
		r.mu.Lock()
		defer r.mu.Unlock()
		return r.registrations["edge"].Registered
	})
	if err := Revoke(t.Context(), client, "edge"); err != nil {
		t.Fatal(err)
	}
	if err := Revoke(t.Context(), client, "edge"); err != nil {
		t.Errorf("revoked again: %v", err)
	}
	eventually(t, "the certificates to be refused", func() bool {
		return errors.Is(r.Check(t.Context(), "edge", uid, genuine), ErrRefused)
	})
	var revoked *RevokedError
	if _, err := r.Join(t.Context(), claimOf("edge", "one")); !errors.As(err, &revoked) {
		t.Errorf("a revoked node joins: got error %v, want it refused", err)
	}
	if _, err := r.Renew(t.Context(), uid, claimOf("edge", "one")); !errors.Is(err, ErrRefused) {
		t.Errorf("a revoked node renews: got error %v, want %v", err, ErrRefused)
	}
	if _, err := r.Join(t.Context(), claimOf("other", "one", "192.0.2.1")); err != nil {
		t.Errorf("another machine joins with the address of a revoked node: %v", err)
	}
	if err := client.CoreV1().Nodes().Delete(t.Context(), "edge", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the name to be free", func() bool {
		_, err := r.Join(t.Context(), claimOf("edge", "two"))
		return err == nil
	})
	for name, want := range map[string]string{"nobody": "no node nobody is registered", "server": "kedge certificate rotate-ca"} {
		if err := Revoke(t.Context(), client, name); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s is revoked: %v", name, err)
		}
	}
}

// The fake client gives out its own objects, so a change to one would show in its store.
func TestWithoutPassword(t *testing.T) {
	stored := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "edge"}, Data: map[string][]byte{"hash": []byte("secret")}}
	cached, err := withoutPassword(stored)
	if err != nil {
		t.Fatal(err)
	}
	if secret := cached.(*corev1.Secret); secret.Data != nil || secret.Name != "edge" {
		t.Errorf("the cache keeps %v of the Secret", secret)
	}
	if len(stored.Data) != 1 {
		t.Error("the object of the API client has lost its data")
	}
}
