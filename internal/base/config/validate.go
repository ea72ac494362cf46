package config

import (
	"errors"
	"fmt"
	"net/netip"
	"net/url"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/robfig/cron/v3"
	"k8s.io/apimachinery/pkg/util/validation"
)

// flannelBackends are the values of flannel-backend.
var flannelBackends = []string{"vxlan", "host-gw", "wireguard-native", "mesh", "none"}

// bucketLookupTypes are the values of s3-bucket-lookup-type.
var bucketLookupTypes = []string{"auto", "dns", "path"}

// podSecurityStandards are Kubernetes's own; empty is its default.
var podSecurityStandards = []string{"", "privileged", "baseline", "restricted"}

// Validate returns all that is wrong with c at once, each as a FieldError.
func (c *Config) Validate() error {
	v := &validator{}
	v.absolute("data-dir", c.DataDir)
	v.log(&c.Log)
	v.oneOf("profile", c.Profile, []string{"", profileCIS})
	v.token("token", c.Token)
	v.agent(&c.Agent)
	v.server(&c.Server)
	v.cluster(&c.Cluster)
	v.upstreamRanges(c)
	v.outside("vip", c.Server.VIP, "cluster-cidr", c.Cluster.ClusterCIDR)
	v.outside("vip", c.Server.VIP, "service-cidr", c.Cluster.ServiceCIDR)
	families := len(c.Cluster.ClusterCIDR)
	if c.Agent.Server != "" && c.Server.ClusterInit {
		v.fault("cluster-init", "cannot be set with server: cluster-init begins a new cluster, and server joins an existing one. Remove one of them")
	}
	if c.Server.Datastore.Endpoint != "" && (c.Agent.Server != "" || c.Server.ClusterInit || c.Server.ClusterReset) {
		v.fault("datastore-endpoint", "cannot be set with server, cluster-init or cluster-reset, which are for embedded etcd. Remove those. "+
			"Servers with the same datastore-endpoint and token form one cluster")
	}
	v.roles(c)
	if c.Agent.Server != "" {
		families = 2 // as the cluster has it, which is not known here
	}
	v.node(&c.Node, families)
	return errors.Join(v.faults...)
}

type validator struct{ faults []error }

func (v *validator) fault(key, format string, args ...any) {
	v.faults = append(v.faults, &FieldError{key, fmt.Sprintf(format, args...)})
}

func (v *validator) token(key, token string) {
	if strings.ContainsAny(token, " \t\n") {
		v.fault(key, "the token contains white space. Remove it")
	}
}

func (v *validator) agent(a *Agent) {
	if a.Server == "" {
		return
	}
	if !isHostURL(a.Server, "https") {
		v.fault("server", "invalid server address %q: use https://HOST:PORT, such as https://192.0.2.10:6443", a.Server)
	}
}

// isHostURL tells whether a text is SCHEME://HOST or SCHEME://HOST:PORT.
func isHostURL(text, scheme string) bool {
	u, err := url.Parse(text)
	return err == nil && u.Scheme == scheme && u.Hostname() != "" && strings.Trim(u.Path, "/") == "" && u.RawQuery == "" && u.User == nil
}

func (v *validator) server(s *Server) {
	if s.HTTPSListenPort < 1 || s.HTTPSListenPort > 65535 {
		v.fault("https-listen-port", "invalid port %d: use a number from 1 to 65535", s.HTTPSListenPort)
	}
	if s.BindAddress != "" {
		v.address("bind-address", s.BindAddress)
	}
	if s.AdvertiseAddress != "" {
		if a, ok := v.address("advertise-address", s.AdvertiseAddress); ok && !a.IsGlobalUnicast() {
			v.fault("advertise-address", "other nodes cannot reach %s: use another address of this host", a)
		}
	}
	v.vip(s)
	for _, name := range s.TLSSAN {
		if _, err := netip.ParseAddr(name); err == nil {
			continue
		}
		if len(validation.IsDNS1123Subdomain(strings.TrimPrefix(name, "*."))) > 0 {
			v.fault("tls-san", "%q is neither an IP address nor a host name", name)
		}
	}
	v.absolute("write-kubeconfig", s.WriteKubeconfig)
	if mode, err := strconv.ParseUint(s.WriteKubeconfigMode, 8, 32); err != nil || mode > 0o777 {
		v.fault("write-kubeconfig-mode", "invalid file mode %q: use an octal number, such as 0600", s.WriteKubeconfigMode)
	}
	if s.WriteKubeconfigName == "" {
		v.fault("write-kubeconfig-name", "is empty: use a name such as default")
	}
	if s.MeshRelayRate < 1 || s.MeshRelayRate > 100_000 {
		v.fault("mesh-relay-rate", "invalid rate %d: use a number of Mbit/s from 1 to 100000, such as 100", s.MeshRelayRate)
	}
	v.token("agent-token", s.AgentToken)
	v.oneOf("pod-security-standard", s.PodSecurityStandard, podSecurityStandards)
	if s.PodSecurityStandard != "" && s.APIServerArg(admissionFile) != "" {
		v.fault("pod-security-standard", "would have no effect, because kube-apiserver-arg sets %s, whose file configures PodSecurity. Remove one of them", admissionFile)
	}
	v.snapshots(&s.Snapshots)
	v.backup(&s.Backup)
	v.datastore(&s.Datastore)
	v.arguments("kube-apiserver-arg", s.KubeAPIServerArgs)
	v.arguments("etcd-arg", s.EtcdArgs)
	v.arguments("kube-controller-manager-arg", s.KubeControllerManagerArgs)
	v.arguments("kube-scheduler-arg", s.KubeSchedulerArgs)
}

// vip checks what can be said of the address without the cluster's ranges.
func (v *validator) vip(s *Server) {
	if s.VIP == "" {
		return
	}
	a, ok := v.address("vip", s.VIP)
	switch {
	case !ok:
	case !a.IsGlobalUnicast() || a.Zone() != "" || a.Is4In6():
		v.fault("vip", "other hosts cannot reach %s: use an address of the servers' network that no host has", a)
	case s.BindAddress != "" && s.BindAddress != "0.0.0.0" && s.BindAddress != "::":
		v.fault("vip", "the API listens only on bind-address %s, so it would not answer at %s. Remove bind-address", s.BindAddress, a)
	case s.BindAddress == "0.0.0.0" && a.Is6():
		v.fault("vip", "the API listens only on IPv4 addresses (bind-address 0.0.0.0), so it would not answer at %s. Remove bind-address", a)
	}
	if s.DisableAPIServer {
		v.fault("vip", "cannot be set with disable-apiserver: only a server with an API server can answer at the address. Remove one of them")
	}
}

// upstreamRanges checks that arguments of upstream's programs do not contradict the cluster's
// ranges. Kubernetes would use one range, and the network and the DNS of kedge another.
func (v *validator) upstreamRanges(c *Config) {
	pods, services := strings.Join(c.Cluster.ClusterCIDR, ","), strings.Join(c.Cluster.ServiceCIDR, ",")
	for _, set := range []struct {
		option   string
		args     []string
		argument string
		key, is  string
	}{
		{"kube-apiserver-arg", c.Server.KubeAPIServerArgs, "service-cluster-ip-range", "service-cidr", services},
		{"kube-controller-manager-arg", c.Server.KubeControllerManagerArgs, "service-cluster-ip-range", "service-cidr", services},
		{"kube-controller-manager-arg", c.Server.KubeControllerManagerArgs, "cluster-cidr", "cluster-cidr", pods},
	} {
		if given := Argument(set.args, set.argument); given != "" && given != set.is {
			v.fault(set.option, "%s=%s is not %s %s, which all parts of kedge use. Remove the argument, and set %[3]s", set.argument, given, set.key, set.is)
		}
	}
}

// outside checks that an address is in none of the cluster's ranges.
func (v *validator) outside(key, address, of string, ranges []string) {
	a, err := netip.ParseAddr(address)
	if err != nil {
		return
	}
	for _, text := range ranges {
		if p, err := netip.ParsePrefix(text); err == nil && p.Contains(a) {
			v.fault(key, "%s is in %s %s, which the cluster uses itself: use an address of the servers' network that no host has", a, of, p)
		}
	}
}

// roles checks what a server leaves to others.
func (v *validator) roles(c *Config) {
	s := &c.Server
	if s.DisableAPIServer && !(s.DisableControllerManager && s.DisableScheduler) {
		v.fault("disable-apiserver", "the controllers and the scheduler need an API server in the same process: set disable-controller-manager and disable-scheduler too")
	}
	if s.DisableAPIServer && s.Datastore.Endpoint != "" {
		v.fault("disable-apiserver", "cannot be set with datastore-endpoint: a server without an API server runs embedded etcd only, which datastore-endpoint replaces. Remove one of them")
	}
	switch {
	case !s.DisableEtcd:
	case s.DisableAPIServer:
		v.fault("disable-etcd", "cannot be set with disable-apiserver: the server would run nothing but a node. Run `kedge agent` for that")
	case s.Datastore.Endpoint != "":
		v.fault("disable-etcd", "has no effect with datastore-endpoint, which replaces embedded etcd. Remove disable-etcd")
	case s.ClusterReset:
		v.fault("disable-etcd", "cannot be set with cluster-reset, which resets etcd. Run cluster-reset on a server that has etcd")
	case c.Agent.Server == "":
		v.fault("disable-etcd", "set server, too, to the address of a server that has etcd")
	}
}

func (v *validator) backup(b *Backup) {
	if interval, err := time.ParseDuration(b.Interval); err != nil || interval < time.Second {
		v.fault("backup-interval", "invalid duration %q: use one such as 10s, of at least 1s", b.Interval)
	}
	if _, _, err := b.KeepTimes(); err != nil {
		v.fault("backup-keep", "%v", err)
	}
	if _, err := b.VerifyEvery(); err != nil {
		v.fault("backup-verify", "%v", err)
	}
	if b.Volumes != "" {
		if _, err := cron.ParseStandard(b.Volumes); err != nil {
			v.fault("backup-volumes", "invalid schedule %q: use cron's syntax, such as 0 3 * * *: %v", b.Volumes, err)
		}
		if b.Location == "" {
			v.fault("backup-volumes", "set backup, too: the contents of volumes are written there")
		}
	}
	if b.Location == "" {
		return
	}
	if _, err := ParsePlace(b.Location); err != nil {
		v.fault("backup", "%v", err)
	}
}

func (v *validator) snapshots(s *Snapshots) {
	if _, err := cron.ParseStandard(s.ScheduleCron); err != nil {
		v.fault("snapshot-schedule-cron", "invalid schedule %q: use cron's syntax, such as 0 */12 * * *: %v", s.ScheduleCron, err)
	}
	if s.Retention < 1 {
		v.fault("snapshot-retention", "%d keeps no snapshot: use 1 or more. To save none by schedule, set disable-snapshots", s.Retention)
	}
	v.absoluteIfSet("snapshot-dir", s.Dir)
	bucket := &s.S3Settings
	if !s.S3 {
		return
	}
	if strings.Contains(bucket.Endpoint, "/") || bucket.Endpoint == "" {
		v.fault("s3-endpoint", "invalid host %q: use HOST or HOST:PORT, such as s3.example.com:9000. For a host without TLS, set s3-insecure", bucket.Endpoint)
	}
	if bucket.Bucket == "" && bucket.ConfigSecret == "" {
		v.fault("s3-bucket", "no bucket is set: set s3-bucket, or s3-config-secret with a Secret that has s3-bucket")
	}
	if (bucket.AccessKey == "") != (bucket.SecretKey == "") {
		v.fault("s3-secret-key", "set both s3-access-key and s3-secret-key, or neither")
	}
	if bucket.SessionToken != "" && bucket.SecretKey == "" {
		v.fault("s3-session-token", "belongs to keys: set s3-access-key and s3-secret-key too")
	}
	v.oneOf("s3-bucket-lookup-type", bucket.BucketLookupType, bucketLookupTypes)
	if u, err := url.Parse(bucket.Proxy); bucket.Proxy != "" && (err != nil || u.Hostname() == "" || !slices.Contains([]string{"http", "https", "socks5"}, u.Scheme)) {
		v.fault("s3-proxy", "is not the address of a proxy: use http://HOST:PORT")
	}
	if timeout, err := time.ParseDuration(bucket.Timeout); err != nil || timeout <= 0 {
		v.fault("s3-timeout", "invalid duration %q: use one such as 30m", bucket.Timeout)
	}
	if bucket.Retention < 0 {
		v.fault("s3-retention", "invalid number %d: use 1 or more, or 0 for snapshot-retention", bucket.Retention)
	}
	v.absoluteIfSet("s3-endpoint-ca", bucket.EndpointCA)
}

// datastore checks what can be said without the database's own parser. The
// endpoint is never shown.
func (v *validator) datastore(d *Datastore) {
	scheme, _, _ := strings.Cut(d.Endpoint, "://")
	switch {
	case d.IsEtcd():
		for endpoint := range strings.SplitSeq(d.Endpoint, ",") {
			if !isHostURL(endpoint, scheme) {
				v.fault("datastore-endpoint", "is not a list of etcd's addresses: use https://HOST:PORT, several with commas, such as https://192.0.2.1:2379,https://192.0.2.2:2379")
				break
			}
		}
		if scheme == "http" && d.CAFile+d.CertFile+d.KeyFile != "" {
			v.fault("datastore-endpoint", "begins with http://, but datastore-cafile, datastore-certfile or datastore-keyfile is set, which are for TLS: use https://")
		}
	case scheme == "t4":
		v.fault("datastore-endpoint", "kedge has no T4 datastore. To lose nothing with the server's disk, remove the setting, and set backup to s3://ENDPOINT/BUCKET/FOLDER. See docs/backup.md")
	case scheme == "memory":
		v.fault("datastore-endpoint", "kedge has no datastore in memory. Remove the setting, and set data-dir to a folder of a tmpfs. For a cluster that only one command needs, use `kedge run`. See docs/run.md")
	case scheme == "nats":
		v.fault("datastore-endpoint", "kedge has no NATS datastore. Remove the setting, and for several servers set cluster-init on the first, or use postgres:// or mysql://. See docs/datastores.md")
	case d.Endpoint != "" && !slices.Contains([]string{"postgres", "postgresql", "mysql"}, scheme):
		v.fault("datastore-endpoint", "unknown kind of datastore: begin with postgres://, with mysql://, or for etcd with https:// or http://. For kedge's own datastore remove the setting")
	case d.Endpoint == "" && d.CAFile+d.CertFile+d.KeyFile != "":
		v.fault("datastore-endpoint", "is not set, but datastore-cafile, datastore-certfile or datastore-keyfile is. Set datastore-endpoint, or remove these")
	}
	v.absoluteIfSet("datastore-cafile", d.CAFile)
	v.absoluteIfSet("datastore-certfile", d.CertFile)
	v.absoluteIfSet("datastore-keyfile", d.KeyFile)
	if (d.CertFile == "") != (d.KeyFile == "") {
		v.fault("datastore-certfile", "set both datastore-certfile and datastore-keyfile, or neither")
	}
}

func (v *validator) cluster(c *Cluster) {
	pods := v.cidrs("cluster-cidr", c.ClusterCIDR)
	services := v.cidrs("service-cidr", c.ServiceCIDR)
	for _, p := range pods {
		for _, s := range services {
			if p.Overlaps(s) {
				v.fault("service-cidr", "%s overlaps with cluster-cidr %s: use another range", s, p)
			}
		}
	}
	if len(pods) > 0 && len(services) > 0 && len(pods) != len(services) {
		v.fault("service-cidr", "has %d ranges, and cluster-cidr has %d. Dual-stack needs two of each", len(services), len(pods))
	}
	for _, text := range c.ClusterDNS {
		a, ok := v.address("cluster-dns", text)
		if ok && !slices.ContainsFunc(services, func(p netip.Prefix) bool { return p.Contains(a) }) {
			v.fault("cluster-dns", "%s is not in service-cidr %s: use an address of that range", a, strings.Join(c.ServiceCIDR, ","))
		}
	}
	first, last, _ := strings.Cut(c.ServiceNodePortRange, "-")
	from, errFrom := strconv.Atoi(first)
	to, errTo := strconv.Atoi(last)
	if errFrom != nil || errTo != nil || from < 1 || to > 65535 || from > to {
		v.fault("service-node-port-range", "invalid range of ports %q: use FIRST-LAST, such as 30000-32767", c.ServiceNodePortRange)
	}
	if len(validation.IsDNS1123Subdomain(c.ClusterDomain)) > 0 {
		v.fault("cluster-domain", "invalid domain name %q: use a name such as cluster.local", c.ClusterDomain)
	}
	v.oneOf("flannel-backend", c.FlannelBackend, flannelBackends)
	v.gateway(&c.Gateway)
	v.gatewayPorts(c.Gateway.Ports, from, to)
	for _, part := range c.Disable {
		if slices.Contains([]string{".yaml", ".yml", ".json"}, filepath.Ext(part)) {
			v.fault("disable", "%q is a file name: remove its extension, as in disable: %s", part, strings.TrimSuffix(part, filepath.Ext(part)))
		}
	}
}

// absolute checks that a setting is an absolute path.
func (v *validator) absolute(key, path string) {
	if !filepath.IsAbs(path) {
		v.fault(key, "%q is not an absolute path: begin it with /", path)
	}
}

// absoluteIfSet checks that a setting is empty or an absolute path.
func (v *validator) absoluteIfSet(key, path string) {
	if path != "" {
		v.absolute(key, path)
	}
}

func (v *validator) oneOf(key, value string, known []string) {
	if !slices.Contains(known, value) {
		v.fault(key, "unknown value %q: use one of %s", value, strings.Trim(strings.Join(known, ", "), ", "))
	}
}

func (v *validator) address(key, text string) (netip.Addr, bool) {
	a, err := netip.ParseAddr(text)
	if err != nil {
		v.fault(key, "%q is not an IP address: use one such as 192.0.2.10", text)
	}
	return a, err == nil
}

// cidrs checks one range, or two of different families, and returns those that
// are ranges.
func (v *validator) cidrs(key string, texts []string) []netip.Prefix {
	var prefixes []netip.Prefix
	for _, text := range texts {
		p, err := netip.ParsePrefix(text)
		switch {
		case err != nil:
			v.fault(key, "invalid range of addresses %q: use ADDRESS/BITS, such as 10.42.0.0/16", text)
		case p != p.Masked():
			v.fault(key, "%s has bits beyond its prefix; did you mean %s?", p, p.Masked())
		default:
			prefixes = append(prefixes, p)
		}
	}
	switch {
	case len(texts) == 0 || len(texts) > 2:
		v.fault(key, "takes one range, or two for dual-stack, got %d ranges", len(texts))
	case len(prefixes) == 2 && prefixes[0].Addr().Is4() == prefixes[1].Addr().Is4():
		v.fault(key, "both ranges are of one address family: dual-stack needs one IPv4 and one IPv6 range")
	}
	return prefixes
}

// arguments checks that each is name=value; the name is upstream's to check.
func (v *validator) arguments(key string, args []string) {
	for _, arg := range args {
		if name, _, ok := strings.Cut(arg, "="); !ok || strings.Trim(name, "-") == "" {
			v.fault(key, "invalid argument %q: use NAME=VALUE", arg)
		}
	}
}
