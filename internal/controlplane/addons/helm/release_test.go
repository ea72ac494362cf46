package helm

import (
	"errors"
	"io"
	"slices"
	"strings"
	"testing"

	"helm.sh/helm/v4/pkg/action"
	"helm.sh/helm/v4/pkg/chart/common"
	"helm.sh/helm/v4/pkg/chart/loader/archive"
	chartv2 "helm.sh/helm/v4/pkg/chart/v2"
	"helm.sh/helm/v4/pkg/chart/v2/loader"
	kubefake "helm.sh/helm/v4/pkg/kube/fake"
	releasecommon "helm.sh/helm/v4/pkg/release/common"
	release "helm.sh/helm/v4/pkg/release/v1"
	"helm.sh/helm/v4/pkg/storage"
	"helm.sh/helm/v4/pkg/storage/driver"
)

// web is a chart with a hook before installs and upgrades.
func web(t *testing.T) *chartv2.Chart {
	t.Helper()
	chart, err := loader.LoadFiles([]*archive.BufferedFile{
		{Name: "Chart.yaml", Data: []byte("apiVersion: v2\nname: web\nversion: 1.0.0\n")},
		{Name: "templates/hook.yaml", Data: []byte("apiVersion: v1\nkind: Pod\nmetadata: {name: hook, annotations: {helm.sh/hook: 'pre-install,pre-upgrade'}}\n")},
	})
	if err != nil {
		t.Fatal(err)
	}
	return chart
}

// newReleases returns releases in memory, and a client that fails on request.
func newReleases() (*releases, *kubefake.FailingKubeClient) {
	cluster := &kubefake.FailingKubeClient{PrintingKubeClient: kubefake.PrintingKubeClient{Out: io.Discard, LogOutput: io.Discard}}
	records := driver.NewMemory()
	records.SetNamespace("apps")
	r := &releases{Configuration: action.NewConfiguration(), name: "web", namespace: "apps"}
	r.KubeClient, r.Releases, r.Capabilities = cluster, storage.Init(records), common.DefaultCapabilities
	return r, cluster
}

// states returns the states that Helm has recorded, the first release first.
func (r *releases) states(t *testing.T) (states []releasecommon.Status) {
	t.Helper()
	history, err := r.Releases.History(r.name)
	if err != nil && !errors.Is(err, driver.ErrReleaseNotFound) {
		t.Fatal(err)
	}
	all := make([]*release.Release, len(history))
	for _, found := range history {
		one := found.(*release.Release)
		all[one.Version-1] = one
	}
	for _, one := range all {
		states = append(states, one.Info.Status)
	}
	return states
}

// TestPolicies has installs and upgrades that fail.
func TestPolicies(t *testing.T) {
	const deployed, superseded, failed = releasecommon.StatusDeployed, releasecommon.StatusSuperseded, releasecommon.StatusFailed
	for policy, want := range map[string]struct{ install, upgrade []releasecommon.Status }{
		"":        {nil, []releasecommon.Status{superseded, failed, deployed}},
		abort:     {[]releasecommon.Status{failed}, []releasecommon.Status{deployed, failed}},
		retry:     {[]releasecommon.Status{failed}, []releasecommon.Status{deployed, failed}},
		reinstall: {nil, []releasecommon.Status{deployed, failed}}, // the caller uninstalls it
	} {
		t.Run(policy, func(t *testing.T) {
			spec := &chartSpec{Overrides: Overrides{FailurePolicy: policy}}
			releases, cluster := newReleases()
			cluster.WatchUntilReadyError = errors.New("the hook failed")
			err := releases.install(t.Context(), spec, web(t), nil)
			if err == nil || !strings.Contains(err.Error(), "the hook failed") {
				t.Errorf("install: %v", err)
			}
			if got := releases.states(t); !slices.Equal(got, want.install) {
				t.Errorf("after an install there are %v, want %v", got, want.install)
			}

			releases, cluster = newReleases()
			if err := releases.install(t.Context(), spec, web(t), nil); err != nil {
				t.Fatal(err)
			}
			cluster.WatchUntilReadyError = errors.New("the hook failed")
			err = releases.upgrade(t.Context(), spec, web(t), nil)
			if err == nil || !strings.Contains(err.Error(), "the hook failed") || strings.Contains(err.Error(), "rolled back") != (policy == "") {
				t.Errorf("upgrade: %v", err)
			}
			if got := releases.states(t); !slices.Equal(got, want.upgrade) {
				t.Errorf("after an upgrade there are %v, want %v", got, want.upgrade)
			}
			if worked, err := releases.everDeployed(); err != nil || !worked {
				t.Errorf("everDeployed: got %t, %v, want true", worked, err)
			}
			cluster.WatchUntilReadyError = nil
			if err := releases.upgrade(t.Context(), spec, web(t), nil); err != nil {
				t.Errorf("upgrade after that: %v", err)
			}
			if err := releases.uninstall(0); err != nil {
				t.Error(err)
			}
			if err := releases.uninstall(0); err != nil {
				t.Errorf("uninstall of nothing: %v", err)
			}
			if last, err := releases.last(); last != nil || err != nil {
				t.Errorf("got release %v, %v, want none", last, err)
			}
		})
	}
}

// TestInterrupted continues after a kedge that ended in the middle of an upgrade.
func TestInterrupted(t *testing.T) {
	releases, _ := newReleases()
	if err := releases.install(t.Context(), &chartSpec{}, web(t), nil); err != nil {
		t.Fatal(err)
	}
	half := &release.Release{Name: "web", Namespace: "apps", Version: 2, Chart: web(t), Info: &release.Info{Status: releasecommon.StatusPendingUpgrade}}
	if err := releases.Releases.Create(half); err != nil {
		t.Fatal(err)
	}
	if err := releases.upgrade(t.Context(), &chartSpec{}, web(t), nil); err == nil {
		t.Error("Helm does not mind")
	}
	if last, err := releases.last(); err != nil || last.Version != 2 || last.Info.Status != releasecommon.StatusFailed {
		t.Errorf("the last is %+v: %v", last, err)
	}
	if err := releases.upgrade(t.Context(), &chartSpec{}, web(t), nil); err != nil {
		t.Error(err)
	}
}
