package ha

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/kedge-dev/kedge/tests/harness"
	"github.com/kedge-dev/kedge/tests/harness/cluster"
	"github.com/kedge-dev/kedge/tests/harness/member"
)

const (
	// serviceURL is the address of the API for pods: the Service kubernetes.
	serviceURL = "https://10.43.0.1"
	// retryAfter is how long clients must wait when a server cannot answer now.
	retryAfter = time.Second
	// answerTimeout is longer than etcd takes to report that a write was lost with the leader:
	// 5 s and two elections.
	answerTimeout = 15 * time.Second
)

// user reads and writes. If a request fails, it sends the request once more, by the next of its ways to
// the API.
type user struct {
	name string
	ways clients

	requests, retries int
	slowest           time.Duration
	written           []string
	faults            []error
}

// newUser returns a user that uses these client configurations.
func newUser(t *testing.T, name string, ways ...*rest.Config) *user {
	t.Helper()
	u := &user{name: name}
	for _, way := range ways {
		way.Timeout = answerTimeout
		way.Wrap(func(next http.RoundTripper) http.RoundTripper { return once{next} })
		client, err := kubernetes.NewForConfig(way)
		if err != nil {
			t.Fatal(err)
		}
		u.ways = append(u.ways, client)
	}
	return u
}

// once keeps client-go from retrying by itself.
type once struct{ http.RoundTripper }

func (o once) RoundTrip(r *http.Request) (*http.Response, error) {
	response, err := o.RoundTripper.RoundTrip(r)
	if err != nil {
		return nil, unretryable(err.Error())
	}
	response.Header.Del("Retry-After")
	return response, nil
}

// unretryable is an error that client-go does not retry.
type unretryable string

func (u unretryable) Error() string { return string(u) }

// try sends a request, and sends it again if it fails.
func (u *user) try(request func(context.Context, kubernetes.Interface) error) {
	began := time.Now()
	first := request(context.Background(), u.ways[0])
	u.requests++
	if first != nil {
		u.ways = append(u.ways[1:], u.ways[0])
		if len(u.ways) == 1 {
			time.Sleep(retryAfter)
		}
		u.retries++
		if second := request(context.Background(), u.ways[0]); second != nil {
			u.faults = append(u.faults, fmt.Errorf("a request of %s failed with %w, and once more with %w", u.name, first, second))
		}
	}
	u.slowest = max(u.slowest, time.Since(began))
}

// work writes, and reads what it wrote, until ctx ends.
func (u *user) work(ctx context.Context) {
	for i := 0; ctx.Err() == nil; i++ {
		name := fmt.Sprintf("%s-%06d", u.name, i)
		u.try(func(ctx context.Context, client kubernetes.Interface) error {
			_, err := client.CoreV1().ConfigMaps("default").Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
			if err == nil || apierrors.IsAlreadyExists(err) {
				u.written = append(u.written, name)
				return nil
			}
			return err
		})
		u.try(func(ctx context.Context, client kubernetes.Interface) error {
			_, err := client.CoreV1().ConfigMaps("default").Get(ctx, name, metav1.GetOptions{})
			return err
		})
		time.Sleep(pace)
	}
}

// TestRollingRestart restarts each of three servers in order, while users of the servers, and of
// the API as pods reach it, read and write. No request may fail twice, pods must keep running, and
// controllers, scheduler and etcd's leadership must be handed over.
func TestRollingRestart(t *testing.T) {
	t.Parallel()
	harness.Require(t)
	network := harness.NewNetwork(t)
	servers := cluster.Gather(t, three(t, network)...)
	c := cluster.Of(t, servers[0])
	agent := c.Join(network, "agent-1")
	for _, host := range []*harness.Host{servers[0].Host, servers[1].Host, servers[2].Host, agent.Host} {
		c.RunWeb("web-"+host.Name, host.Name)
	}
	before := c.Containers()
	lease := follow(t, servers...)

	var users []*user
	for i, server := range servers {
		next := servers[(i+1)%len(servers)]
		users = append(users, newUser(t, "of-"+server.Host.Name, server.RESTConfig(), next.RESTConfig()))
	}
	service := servers[0].RESTConfig()
	service.Host = serviceURL
	service.Dial = func(ctx context.Context, network, address string) (net.Conn, error) {
		return agent.Host.DialContext(ctx, network, address)
	}
	users = append(users, newUser(t, "of-service", service))
	ctx, stop := context.WithCancel(t.Context())
	var working sync.WaitGroup
	t.Cleanup(working.Wait)
	t.Cleanup(stop)
	for _, user := range users {
		working.Go(func() { user.work(ctx) })
	}

	for _, server := range servers {
		stopInOrder(t, lease, server, servers)
		server.Start()
		server.WaitReady()
	}
	member.WaitVoters(t, servers[0], "server-1", "server-2", "server-3")
	stop()
	working.Wait()
	for _, user := range users {
		t.Logf("%s: %d requests, %d of them twice, the slowest took %s", user.name, user.requests, user.retries, user.slowest.Round(time.Millisecond))
		if err := errors.Join(user.faults...); err != nil {
			t.Error(err)
		}
		for _, name := range user.written {
			if _, err := servers[0].Client().CoreV1().ConfigMaps("default").Get(t.Context(), name, metav1.GetOptions{}); err != nil {
				t.Errorf("%s was acknowledged: %v", name, err)
			}
		}
	}
	c.WantSameContainers(before)

	// A server that is killed hands nothing over.
	dead := holder(t, servers...)
	_, took := lease.passes(dead, dead.Kill9)
	t.Logf("another server led %s after %s was killed", took.Round(time.Millisecond), dead.Host.Name)
	dead.Start()
	dead.WaitReady()
	c.WantSameContainers(before)
}

// stopInOrder stops a server. If the server has the Lease or leads etcd, it hands these over.
func stopInOrder(t *testing.T, lease *history, server *harness.Server, servers []*harness.Server) {
	t.Helper()
	began := time.Now()
	if holder(t, servers...) != server {
		server.Terminate()
	} else {
		since, took := lease.passes(server, server.Terminate)
		if since[0].node != "" {
			t.Errorf("%s has not given the Lease back: the holders were %v", server.Host.Name, since)
		}
		t.Logf("%s handed the Lease over to %s %s after it was told to stop", server.Host.Name, since[len(since)-1].node, took.Round(time.Millisecond))
	}
	t.Logf("%s stopped in %s", server.Host.Name, time.Since(began).Round(time.Millisecond))
	// Without a hand-over the others would elect a leader seconds from now.
	led := false
	for _, other := range without(server, servers) {
		status, err := member.Status(other.Host)
		if err != nil {
			t.Error(err)
			continue
		}
		led = led || status.Leader == status.Header.MemberId
	}
	if !led {
		t.Errorf("none of the others leads etcd when %s has stopped", server.Host.Name)
	}
}
