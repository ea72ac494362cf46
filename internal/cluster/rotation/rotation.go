// Package rotation replaces the cluster's authorities and its join token. Package cli
// calls it for its commands, and package server runs its Keeper.
package rotation

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/kedge-dev/kedge/internal/base/config"
	"github.com/kedge-dev/kedge/internal/base/datadir"
	"github.com/kedge-dev/kedge/internal/base/localapi"
	"github.com/kedge-dev/kedge/internal/base/nodeobject"
	"github.com/kedge-dev/kedge/internal/cluster/join"
	"github.com/kedge-dev/kedge/internal/cluster/pki"
	"github.com/kedge-dev/kedge/internal/cluster/renewal"
	clusterservers "github.com/kedge-dev/kedge/internal/cluster/servers"
)

// probePatience is how long a kubelet or server may take to show its certificate.
const probePatience = 10 * time.Second

// Config is what a server's Keeper has to know.
type Config struct {
	Certificates *pki.Server
	Dir          datadir.Dir
	Clock        *pki.Clock
	// Node is the name of the server's own node.
	Node string
	// Dial connects to an address on another node.
	Dial func(ctx context.Context, node, address string) (net.Conn, error)
	// Members returns HOST:PORT of the servers that have etcd, some of which may run no
	// API server. It is nil if the servers have no embedded etcd.
	Members func() []string
	// Authorities replaces the authorities of all servers that share a datastore. It is
	// nil if there is only one server.
	Authorities *join.SharedAuthorities
}

// NewKeeper returns the component that renews a server's certificates, and replaces the
// authorities when a command asks for it.
func NewKeeper(cfg Config) *renewal.Keeper {
	settings := renewal.Config{
		Now:   cfg.Clock.Now,
		Due:   cfg.Certificates.Due,
		Renew: func(_ context.Context, all bool) ([]string, error) { return cfg.Certificates.Renew(all) },
		Lagging: func(ctx context.Context, kubelets map[string]string, servers []string) (renewal.Lag, error) {
			if !cfg.Certificates.Rotating() {
				return renewal.Lag{}, errors.New("this server is not between the two steps of replacing the certificate authorities: run `kedge certificate rotate-ca`, and restart the server")
			}
			if cfg.Members != nil {
				members := cfg.Members()
				if len(members) == 0 {
					return renewal.Lag{}, errors.New("this server does not know yet which servers have etcd: wait until `kedge status` shows it as ready, and try again")
				}
				servers = append(servers, members...)
			}
			return lagging(ctx, kubelets, servers, cfg.Certificates.SignedNow, func(ctx context.Context, name, address string) (net.Conn, error) {
				if _, is := kubelets[name]; !is || name == cfg.Node {
					return new(net.Dialer).DialContext(ctx, "tcp", address)
				}
				return cfg.Dial(ctx, name, address)
			}), nil
		},
	}
	if cfg.Authorities != nil {
		settings.Replace = func(ctx context.Context, finish bool) error {
			return cfg.Authorities.Replace(ctx, func() (map[string][]byte, error) {
				if finish {
					return pki.LastAuthorities(cfg.Dir)
				}
				return pki.NextAuthorities(cfg.Dir, cfg.Clock.Now())
			})
		}
	}
	keeper := renewal.New(settings)
	cfg.Clock.AfterSet(keeper.Look)
	return keeper
}

// lagging asks kubelets, by the names of their nodes, and servers for their certificates.
// It returns those that have not followed: signed is false for their certificates, or
// they do not answer.
func lagging(ctx context.Context, kubelets map[string]string, servers []string, signed func(*x509.Certificate) bool,
	dial func(ctx context.Context, name, address string) (net.Conn, error)) renewal.Lag {
	ctx, cancel := context.WithTimeout(ctx, probePatience)
	defer cancel()
	asked := map[string]string{}
	maps.Copy(asked, kubelets)
	for _, address := range servers {
		asked["the server at "+address] = address
	}
	var mu sync.Mutex
	var asking sync.WaitGroup
	lag := renewal.Lag{Why: map[string]string{}}
	for name, address := range asked {
		asking.Go(func() {
			cert, err := show(ctx, name, address, dial)
			if err == nil && !signed(cert) {
				err = errors.New("the old certificate authority signed its certificates: restart kedge there, or on an agent run `kedge certificate rotate`")
			}
			mu.Lock()
			defer mu.Unlock()
			_, node := kubelets[name]
			switch {
			case err != nil && node:
				lag.Why["node "+name] = err.Error()
			case err != nil:
				lag.Why[name] = err.Error()
			case !node && pki.IssuedAt(cert).After(lag.Since):
				lag.Since = pki.IssuedAt(cert)
			}
		})
	}
	asking.Wait()
	return lag
}

// show returns the certificate that the server at an address shows.
func show(ctx context.Context, name, address string, dial func(ctx context.Context, name, address string) (net.Conn, error)) (*x509.Certificate, error) {
	conn, err := dial(ctx, name, address)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	// The caller judges the certificate, and nothing is sent over the connection.
	client := tls.Client(conn, &tls.Config{InsecureSkipVerify: true})
	if err := client.HandshakeContext(ctx); err != nil {
		return nil, err
	}
	return client.ConnectionState().PeerCertificates[0], nil
}

// Begin prepares new authorities of the cluster. From its next start on, each server uses
// them beside the old ones. Begin returns the token that nodes need to join then. alone
// says that the cluster has only this server; its kedge need not run.
func Begin(ctx context.Context, kedge *localapi.Client, dir datadir.Dir, alone bool, now time.Time) (token string, err error) {
	if alone {
		err = pki.PrepareAuthorities(dir, now)
	} else {
		err = renewal.Replace(ctx, kedge, false)
	}
	if err != nil {
		return "", err
	}
	authority, err := os.ReadFile(filepath.Join(dir.NextServerTLS(), "server-ca.crt"))
	if err != nil {
		return "", fmt.Errorf("read new authority: %w", err)
	}
	return join.TokenFor(dir, authority)
}

// Finish prepares the removal of the old authorities, which happens at the next start of
// each server. It fails while a node, server, Secret or pod is known to need them still.
// With ignorePods it does not look at pods that have not restarted since Begin. alone is
// as for Begin.
func Finish(ctx context.Context, kedge *localapi.Client, cfg *config.Config, alone bool, client kubernetes.Interface, ignorePods bool) error {
	dir := datadir.Dir(cfg.DataDir)
	since, err := pki.RotatedAt(dir)
	if err != nil {
		return err
	}
	pins := []string{cfg.Server.AgentToken}
	if alone { // several servers share one token: join.SharedToken
		pins = append(pins, cfg.Token)
	}
	faults := []error{join.CheckPins(dir, pins...)}
	nodes, err := client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return fmt.Errorf("list nodes: %w", err)
	}
	servers, err := client.DiscoveryV1().EndpointSlices(metav1.NamespaceDefault).Get(ctx, "kubernetes", metav1.GetOptions{})
	if err != nil && !apierrors.IsNotFound(err) { // a user may have told the API server not to write it
		return fmt.Errorf("list servers: %w", err)
	}
	lag, err := renewal.Lagging(ctx, kedge, kubelets(nodes.Items), clusterservers.Addresses(servers, ""))
	if err != nil {
		return err
	}
	for _, name := range slices.Sorted(maps.Keys(lag.Why)) {
		faults = append(faults, fmt.Errorf("%s does not use the new certificate authorities yet (%s): start it, or delete it with kubectl delete node", name, lag.Why[name]))
	}
	// Until the last server followed, it signed tokens with the old key.
	if lag.Since.After(since) {
		since = lag.Since
	}
	secrets, err := client.CoreV1().Secrets("").List(ctx, metav1.ListOptions{FieldSelector: "type=" + string(corev1.SecretTypeServiceAccountToken)})
	if err != nil {
		return fmt.Errorf("list tokens of service accounts: %w", err)
	}
	for _, secret := range secrets.Items {
		if secret.CreationTimestamp.Time.Before(since) {
			faults = append(faults, fmt.Errorf("secret %s/%s has a token that the old key signed: delete the secret, and create it again if it is needed", secret.Namespace, secret.Name))
		}
	}
	if !ignorePods {
		pods, err := client.CoreV1().Pods("").List(ctx, metav1.ListOptions{})
		if err != nil {
			return fmt.Errorf("list pods: %w", err)
		}
		if names := oldPods(pods.Items, since); len(names) > 0 {
			faults = append(faults, fmt.Errorf("these pods may call the API, have not been restarted, and may trust only the old certificate authority: %s. "+
				"Restart them (kubectl rollout restart). If they do not call the API, or read ca.crt again by themselves, add --ignore-pods", strings.Join(names, ", ")))
		}
	}
	if err := errors.Join(faults...); err != nil {
		return fmt.Errorf("the old certificate authorities are still needed:\n%w", err)
	}
	if alone {
		return pki.DropAuthorities(dir)
	}
	return renewal.Replace(ctx, kedge, true)
}

// kubelets returns the addresses of the kubelets, HOST:PORT, by the nodes' names.
func kubelets(nodes []corev1.Node) map[string]string {
	addresses := map[string]string{}
	for _, node := range nodes {
		port := strconv.Itoa(int(node.Status.DaemonEndpoints.KubeletEndpoint.Port))
		addresses[node.Name] = net.JoinHostPort(cmp.Or(nodeobject.InternalIP(&node), node.Name), port)
	}
	return addresses
}

// oldPods returns the names of the pods that have had a service account's token since
// before a time.
func oldPods(pods []corev1.Pod, since time.Time) []string {
	var names []string
	for _, pod := range pods {
		ended := pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed
		token := slices.ContainsFunc(pod.Spec.Volumes, func(v corev1.Volume) bool {
			return v.Projected != nil && slices.ContainsFunc(v.Projected.Sources, func(s corev1.VolumeProjection) bool { return s.ServiceAccountToken != nil })
		})
		if !ended && token && pod.Status.StartTime != nil && pod.Status.StartTime.Time.Before(since) {
			names = append(names, pod.Namespace+"/"+pod.Name)
		}
	}
	return names
}

// Token replaces the join token of the cluster by a given one, or by a random one if given is
// empty, and returns the whole new token. If several
// servers share a datastore, the kedge that runs at local, HOST:PORT, replaces it, so
// that all servers learn the new one. alone is as for Begin.
func Token(ctx context.Context, dir datadir.Dir, alone bool, configured, local, given string) (string, error) {
	if alone {
		if configured != "" {
			return "", errors.New("the configuration sets the token: change token or token-file there, and restart the server")
		}
		return join.RotateToken(dir, given)
	}
	return join.AskRotate(ctx, dir, local, func(ctx context.Context, network, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, network, local)
	}, given)
}
