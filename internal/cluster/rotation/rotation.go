// Package rotation replaces the cluster's authorities and its join token: for the
// commands of package cli, and as what a running server does for them.
package rotation

import (
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
	"github.com/kedge-dev/kedge/internal/cluster/join"
	"github.com/kedge-dev/kedge/internal/cluster/pki"
	"github.com/kedge-dev/kedge/internal/cluster/renewal"
	clusterservers "github.com/kedge-dev/kedge/internal/cluster/servers"
)

// probePatience is how long a node's kubelet may take to show its certificate.
const probePatience = 10 * time.Second

// Config is what a server's Keeper has to know.
type Config struct {
	Certificates *pki.Server
	Dir          datadir.Dir
	Clock        *pki.Clock
	// Node is the name of the server's own node.
	Node string
	// Dial connects to what is on another node.
	Dial func(ctx context.Context, node, address string) (net.Conn, error)
	// Members returns HOST:PORT of the servers that have etcd, of which some may have no
	// API. Nil if the servers have no etcd of kedge's.
	Members func() []string
	// Authorities are what servers with one datastore replace theirs by. Nil if there is
	// only one server.
	Authorities *join.SharedAuthorities
}

// NewKeeper returns the component that renews a server's certificates, and replaces the
// authorities when a command asks for that.
func NewKeeper(cfg Config) *renewal.Keeper {
	settings := renewal.Config{
		Now:   cfg.Clock.Now,
		Due:   cfg.Certificates.Due,
		Renew: func(_ context.Context, all bool) ([]string, error) { return cfg.Certificates.Renew(all) },
		Lagging: func(ctx context.Context, kubelets map[string]string, servers []string) (renewal.Lag, error) {
			if !cfg.Certificates.Rotating() {
				return renewal.Lag{}, errors.New("this server does not use new authorities beside old ones: begin with `kedge certificate rotate-ca`, and restart it")
			}
			if cfg.Members != nil {
				members := cfg.Members()
				if len(members) == 0 {
					return renewal.Lag{}, errors.New("it is not known yet which servers have etcd: see `kedge status`, and try again")
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
	return renewal.New(settings)
}

// lagging asks kubelets, by the names of their nodes, and servers for their
// certificates, and returns which have not followed: what they show is not signed as it
// should.
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
				err = errors.New("its certificates are of the old authority, until kedge is restarted there; on an agent `kedge certificate rotate` renews them")
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

// show returns the certificate that somebody shows.
func show(ctx context.Context, name, address string, dial func(ctx context.Context, name, address string) (net.Conn, error)) (*x509.Certificate, error) {
	conn, err := dial(ctx, name, address)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	// It is compared by who asks, and nothing is sent.
	client := tls.Client(conn, &tls.Config{InsecureSkipVerify: true})
	if err := client.HandshakeContext(ctx); err != nil {
		return nil, err
	}
	return client.ConnectionState().PeerCertificates[0], nil
}

// Begin prepares new authorities of the cluster, which the next start of each server
// takes into use beside the old ones, and returns the token that further nodes need
// then. alone says that the cluster has only this server, whose kedge need not run.
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

// Finish prepares the end of the old authorities, with the next start of each server. It
// refuses while there is something that it would lock out, as far as can be known.
// ignorePods leaves out pods that have not started since. alone is as for Begin.
func Finish(ctx context.Context, kedge *localapi.Client, cfg *config.Config, alone bool, client kubernetes.Interface, ignorePods bool) error {
	dir := datadir.Dir(cfg.DataDir)
	since, err := pki.RotatedAt(dir)
	if err != nil {
		return err
	}
	pins := []string{cfg.Server.AgentToken}
	if alone { // others have agreed on one: join.SharedToken
		pins = append(pins, cfg.Token)
	}
	faults := []error{join.CheckPins(dir, pins...)}
	nodes, err := client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return fmt.Errorf("list nodes: %w", err)
	}
	servers, err := client.DiscoveryV1().EndpointSlices(metav1.NamespaceDefault).Get(ctx, "kubernetes", metav1.GetOptions{})
	if err != nil && !apierrors.IsNotFound(err) { // a user may have the API server not write it
		return fmt.Errorf("list servers: %w", err)
	}
	lag, err := renewal.Lagging(ctx, kedge, kubelets(nodes.Items), clusterservers.Addresses(servers, ""))
	if err != nil {
		return err
	}
	for _, name := range slices.Sorted(maps.Keys(lag.Why)) {
		faults = append(faults, fmt.Errorf("%s has not followed (%s): start it, or delete it with kubectl delete node", name, lag.Why[name]))
	}
	// Before the last of the servers had followed it still signed with the old key.
	if lag.Since.After(since) {
		since = lag.Since
	}
	secrets, err := client.CoreV1().Secrets("").List(ctx, metav1.ListOptions{FieldSelector: "type=" + string(corev1.SecretTypeServiceAccountToken)})
	if err != nil {
		return fmt.Errorf("list tokens of service accounts: %w", err)
	}
	for _, secret := range secrets.Items {
		if secret.CreationTimestamp.Time.Before(since) {
			faults = append(faults, fmt.Errorf("secret %s/%s has a token that the old key signed: delete it, and make it again where it is needed", secret.Namespace, secret.Name))
		}
	}
	if !ignorePods {
		pods, err := client.CoreV1().Pods("").List(ctx, metav1.ListOptions{})
		if err != nil {
			return fmt.Errorf("list pods: %w", err)
		}
		if names := oldPods(pods.Items, since); len(names) > 0 {
			faults = append(faults, fmt.Errorf("pods that may call the API have not started anew, and may know the old authority alone: %s. "+
				"Restart them (kubectl rollout restart); or give --ignore-pods, if they do not call it or read its authority anew", strings.Join(names, ", ")))
		}
	}
	if err := errors.Join(faults...); err != nil {
		return fmt.Errorf("the old authorities are still needed:\n%w", err)
	}
	if alone {
		return pki.DropAuthorities(dir)
	}
	return renewal.Replace(ctx, kedge, true)
}

// kubelets returns where those of nodes are, by the nodes' names.
func kubelets(nodes []corev1.Node) map[string]string {
	addresses := map[string]string{}
	for _, node := range nodes {
		port := strconv.Itoa(int(node.Status.DaemonEndpoints.KubeletEndpoint.Port))
		for _, address := range slices.Backward(node.Status.Addresses) {
			if address.Type == corev1.NodeInternalIP {
				addresses[node.Name] = net.JoinHostPort(address.Address, port)
			}
		}
		if addresses[node.Name] == "" {
			addresses[node.Name] = net.JoinHostPort(node.Name, port)
		}
	}
	return addresses
}

// oldPods names the pods that have a service account's token since before a time.
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

// Token replaces the join token of the cluster, and returns the new one. If several
// servers share a datastore, the kedge that runs at local, HOST:PORT, does it, so that
// all servers learn the token. alone is as for Begin.
func Token(ctx context.Context, dir datadir.Dir, alone bool, configured, local string) (string, error) {
	if alone {
		if configured != "" {
			return "", errors.New("the token is set by the configuration: change token or token-file there, and restart the server")
		}
		return join.RotateToken(dir)
	}
	return join.AskRotate(ctx, dir, local, func(ctx context.Context, network, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, network, local)
	})
}
