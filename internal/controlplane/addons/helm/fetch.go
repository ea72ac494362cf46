package helm

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"

	"helm.sh/helm/v4/pkg/action"
	ichart "helm.sh/helm/v4/pkg/chart"
	chartv2 "helm.sh/helm/v4/pkg/chart/v2"
	"helm.sh/helm/v4/pkg/chart/v2/loader"
	"helm.sh/helm/v4/pkg/getter"
	"helm.sh/helm/v4/pkg/registry"
	repo "helm.sh/helm/v4/pkg/repo/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"oras.land/oras-go/v2/registry/remote/auth"
	"oras.land/oras-go/v2/registry/remote/credentials"

	"github.com/kedge-dev/kedge/internal/base/datadir"
)

// fetchPatience limits the time for one file from a server.
const fetchPatience = 2 * time.Minute

// k3sStatic is the address by which k3s's own HelmCharts name the server's folder
// of files.
const k3sStatic = "https://%{KUBERNETES_API}%/static/charts/"

// localPath returns the path of a chart in the server's folder, or an empty
// string for other charts.
func (c *controller) localPath(spec *chartSpec) (string, error) {
	name, static := strings.CutPrefix(spec.Chart, k3sStatic)
	if spec.ChartContent != "" || !static && (spec.Repo != "" || strings.Contains(name, "://")) {
		return "", nil
	}
	if !filepath.IsLocal(name) {
		return "", fmt.Errorf("chart %q is not in %s: set repo or chartContent, or set chart to an address or to the name of a file or folder there", spec.Chart, c.Charts)
	}
	return filepath.Join(c.Charts, name), nil
}

// fetch returns the chart that a HelmChart names.
func (c *controller) fetch(ctx context.Context, h *helmChart) (*chartv2.Chart, error) {
	local, err := c.localPath(&h.Spec)
	if err != nil {
		return nil, err
	}
	var chart *chartv2.Chart
	if local != "" {
		chart, err = loader.Load(local)
		if errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("there is no chart %s on server %s, neither a folder nor an archive. To take it from a repository, set repo", local, c.Server)
		}
	} else {
		var archive []byte
		if archive, err = c.archive(ctx, h); err == nil {
			err = checkSize(archive)
		}
		if err == nil {
			chart, err = loader.LoadArchive(bytes.NewReader(archive))
		}
	}
	if err != nil {
		// Events and the log must not contain the password of an address.
		return nil, errors.New("get chart: " + withoutUser(withoutUser(err.Error(), h.Spec.Repo), h.Spec.Chart))
	}
	if chart.Metadata.Type == "library" {
		return nil, fmt.Errorf("chart %s is a library for other charts, and cannot be installed", chart.Name())
	}
	var needed []ichart.Dependency
	for _, dependency := range chart.Metadata.Dependencies {
		needed = append(needed, dependency)
	}
	if err := action.CheckDependencies(chart, needed); err != nil {
		return nil, fmt.Errorf("chart %s: %w: pack it after `helm dependency update`", chart.Name(), err)
	}
	return chart, nil
}

// withoutUser removes the user and the password of an address from a text.
func withoutUser(text, address string) string {
	_, rest, _ := strings.Cut(address, "://")
	host, _, _ := strings.Cut(rest, "/")
	if end := strings.LastIndex(host, "@"); end >= 0 {
		text = strings.ReplaceAll(text, host[:end+1], "")
	}
	return text
}

// archive returns the .tgz archive of a chart.
func (c *controller) archive(ctx context.Context, h *helmChart) ([]byte, error) {
	spec := &h.Spec
	if spec.ChartContent != "" {
		data, err := base64.StdEncoding.DecodeString(strings.Join(strings.Fields(spec.ChartContent), ""))
		if err != nil {
			return nil, fmt.Errorf("chartContent is not base64: %w", err)
		}
		return data, nil
	}
	transport, err := c.transport(ctx, h)
	if err != nil {
		return nil, err
	}
	defer transport.CloseIdleConnections()
	switch {
	case registry.IsOCI(spec.Chart):
		return c.pull(ctx, h, spec.Chart, transport)
	case registry.IsOCI(spec.Repo):
		return c.pull(ctx, h, strings.TrimSuffix(spec.Repo, "/")+"/"+spec.Chart, transport)
	}
	options := []getter.Option{getter.WithTransport(transport), getter.WithTimeout(fetchPatience), getter.WithPassCredentialsAll(spec.AuthPassCredentials)}
	if spec.AuthSecret != nil {
		secret, err := c.api.CoreV1().Secrets(h.Namespace).Get(ctx, spec.AuthSecret.Name, metav1.GetOptions{})
		if err != nil {
			return nil, fmt.Errorf("authSecret: %w", err)
		}
		options = append(options, getter.WithBasicAuth(string(secret.Data[corev1.BasicAuthUsernameKey]), string(secret.Data[corev1.BasicAuthPasswordKey])))
	}
	address := spec.Chart
	client, err := getter.NewHTTPGetter(append(options, getter.WithURL(cmp.Or(spec.Repo, address)))...)
	if err != nil {
		return nil, err
	}
	if spec.Repo != "" {
		if address, err = find(client, spec); err != nil {
			return nil, err
		}
	}
	text, err := client.Get(address)
	if err != nil {
		return nil, err
	}
	return text.Bytes(), nil
}

// find returns the address of a chart in a repository.
func find(client getter.Getter, spec *chartSpec) (string, error) {
	text, err := client.Get(strings.TrimSuffix(spec.Repo, "/") + "/index.yaml")
	if err != nil {
		return "", fmt.Errorf("repo %s: %w", spec.Repo, err)
	}
	// Helm can read an index only from a file.
	file, err := os.CreateTemp("", "helm-index-*.yaml")
	if err != nil {
		return "", err
	}
	defer os.Remove(file.Name())
	_, err = text.WriteTo(file)
	if err = errors.Join(err, file.Close()); err != nil {
		return "", err
	}
	index, err := repo.LoadIndexFile(file.Name())
	if err != nil {
		return "", fmt.Errorf("repo %s: index.yaml: %w", spec.Repo, err)
	}
	found, err := index.Get(spec.Chart, spec.Version)
	if err != nil || len(found.URLs) == 0 {
		return "", fmt.Errorf("repo %s has no chart %s of version %q", spec.Repo, spec.Chart, spec.Version)
	}
	return repo.ResolveReferenceURL(spec.Repo, found.URLs[0])
}

// pull gets a chart from a registry.
func (c *controller) pull(ctx context.Context, h *helmChart, reference string, transport *http.Transport) ([]byte, error) {
	authorizer := auth.Client{Client: &http.Client{Transport: transport, Timeout: fetchPatience}}
	if secret := h.Spec.DockerRegistrySecret; secret != nil {
		found, err := c.api.CoreV1().Secrets(h.Namespace).Get(ctx, secret.Name, metav1.GetOptions{})
		if err != nil {
			return nil, fmt.Errorf("dockerRegistrySecret: %w", err)
		}
		store, err := credentials.NewMemoryStoreFromDockerConfig(found.Data[corev1.DockerConfigJsonKey])
		if err != nil {
			return nil, fmt.Errorf("dockerRegistrySecret %s: %s: %w", secret.Name, corev1.DockerConfigJsonKey, err)
		}
		authorizer.Credential = credentials.Credential(store)
	}
	options := []registry.ClientOption{registry.ClientOptAuthorizer(authorizer), registry.ClientOptHTTPClient(authorizer.Client)}
	if h.Spec.PlainHTTP {
		options = append(options, registry.ClientOptPlainHTTP())
	}
	client, err := registry.NewClient(options...)
	if err != nil {
		return nil, err
	}
	address, err := url.Parse(reference)
	if err != nil {
		return nil, err
	}
	if _, address, err = client.ValidateReference(reference, h.Spec.Version, address); err != nil {
		return nil, fmt.Errorf("%s: %w", reference, err)
	}
	result, err := client.Pull(address.Host + "/" + strings.TrimPrefix(address.Path, "/"))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", reference, err)
	}
	return result.Chart.Data, nil
}

// transport returns an HTTP transport that trusts the certificate authorities named in
// the HelmChart, and receives no more than one chart needs.
func (c *controller) transport(ctx context.Context, h *helmChart) (*http.Transport, error) {
	spec := &h.Spec
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.TLSClientConfig = &tls.Config{InsecureSkipVerify: spec.InsecureSkipTLSVerify}
	limited(transport)
	bundles := []string{spec.RepoCA}
	if spec.RepoCAConfigMap != nil {
		found, err := c.api.CoreV1().ConfigMaps(h.Namespace).Get(ctx, spec.RepoCAConfigMap.Name, metav1.GetOptions{})
		if err != nil {
			return nil, fmt.Errorf("repoCAConfigMap: %w", err)
		}
		for _, text := range found.Data {
			bundles = append(bundles, text)
		}
	}
	for _, bundle := range bundles {
		if bundle == "" {
			continue
		}
		if transport.TLSClientConfig.RootCAs == nil {
			transport.TLSClientConfig.RootCAs = x509.NewCertPool()
		}
		if !transport.TLSClientConfig.RootCAs.AppendCertsFromPEM([]byte(bundle)) {
			return nil, errors.New("repoCA or a value in repoCAConfigMap contains no certificate in PEM")
		}
	}
	return transport, nil
}

// digest returns a digest of a chart in the server's folder, or an empty string
// for other charts. Other charts are assumed not to change as long as their names
// are the same.
func (c *controller) digest(spec *chartSpec) (string, error) {
	local, err := c.localPath(spec)
	if err != nil || local == "" {
		return "", err
	}
	hash := sha256.New()
	if linked, err := filepath.EvalSymlinks(local); err == nil {
		local = linked // WalkDir does not follow links
	}
	err = filepath.WalkDir(local, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		return addTo(hash, path)
	})
	if errors.Is(err, fs.ErrNotExist) {
		return "none", nil // fetch reports it
	}
	return hex.EncodeToString(hash.Sum(nil)), err
}

// addTo adds the path, the size and the content of a file to a digest. It refuses
// everything except regular files, and so keeps Helm from reading them.
func addTo(digest io.Writer, path string) error {
	file, err := datadir.OpenRegular(path)
	if err != nil {
		return err
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return err
	}
	fmt.Fprintf(digest, "%s %d\n", path, info.Size())
	_, err = io.Copy(digest, file)
	return err
}
