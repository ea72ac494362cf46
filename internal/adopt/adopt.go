// Package adopt turns a k3s server that does not run into a kedge server. The command
// `kedge adopt k3s` calls it.
//
// k3s's files are only read. Everything is built in a folder beside the place of the
// server's files, and one rename at the end makes it the server's. Until then, a crash
// leaves nothing that a start of kedge would use, and the next call begins again. Files
// outside of that folder, such as registries.yaml and archives of images, are written
// before the rename and are the same at each call.
//
// The objects keep their resource versions. Only the present state of each object is
// taken: for clients, all earlier revisions count as compacted. Objects that this version
// of Kubernetes cannot read, and objects of parts of k3s that kedge has itself, are left
// out and reported.
package adopt

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/kedge-dev/kedge/internal/base/config"
	"github.com/kedge-dev/kedge/internal/base/datadir"
	"github.com/kedge-dev/kedge/internal/base/host"
)

// Config says what becomes what.
type Config struct {
	// Settings are those with which the new server will start.
	Settings *config.Config
	// Root is the folder below which k3s's files are: / except in tests.
	Root string
	// Step is called before each step, with what it does.
	Step func(what string)
}

// adoption is one call of Run.
type adoption struct {
	Config
	k3s *installation
	dir datadir.Dir
	// made is the data directory in which the server's files are built.
	made   datadir.Dir
	node   host.Node
	report *Report
	// under is the content of the file that the keys of Secrets are encrypted under.
	under []byte
}

// Run makes a server of what k3s has left on this host, in the data directory of the
// settings. It fails before it writes anything if k3s or its pods run, or if kedge has
// state there. It fails and removes what it has built if k3s's state cannot be taken as a
// whole. Errors say what to do.
func Run(ctx context.Context, cfg Config) (*Report, error) {
	a := &adoption{Config: cfg, dir: datadir.Dir(cfg.Settings.DataDir), report: &Report{}}
	var err error
	if a.k3s, err = find(cfg.Root); err != nil {
		return nil, err
	}
	if err := a.k3s.checkStopped(); err != nil {
		return nil, err
	}
	if err := checkTarget(cfg.Settings); err != nil {
		return nil, err
	}
	if a.node, err = host.ResolveNode(cfg.Settings.Node, cfg.Settings.Cluster.PodCIDRs()); err != nil {
		return nil, err
	}
	release, err := a.dir.Take()
	if err != nil {
		return nil, err
	}
	defer release()
	if err := checkEmpty(a.dir); err != nil {
		return nil, err
	}
	if err := a.run(ctx); err != nil {
		return nil, errors.Join(err, os.RemoveAll(string(a.made)))
	}
	return a.report, nil
}

// step is one step of an adoption.
type step struct {
	what string
	do   func(context.Context) error
}

// steps returns the steps in their order. The last one makes the files the server's.
func (a *adoption) steps() []step {
	return []step{
		{"make an empty folder for the new server", a.begin},
		{"take the authorities and keys", a.takeAuthorities},
		{"take the join token", a.takeToken},
		{"take the objects", a.takeObjects},
		{"take manifests and charts", a.takeManifests},
		{"take registries.yaml", a.takeRegistries},
		{"take archives of images", a.takeArchives},
		{"take the images of containers", a.takeImages},
		{"write the report", a.writeReport},
		{"sync everything to the disk", a.sync},
		{"put the new server into its place", a.commit},
	}
}

func (a *adoption) run(ctx context.Context) error {
	for _, step := range a.steps() {
		if a.Step != nil {
			a.Step(step.what)
		}
		err := step.do(ctx)
		if err == nil {
			err = ctx.Err()
		}
		if err != nil {
			return fmt.Errorf("%s: %w", step.what, err)
		}
	}
	return nil
}

// checkTarget refuses settings with which the new server would not use what is adopted.
func checkTarget(cfg *config.Config) error {
	const leave = "leave it out for the adoption and the first start"
	switch {
	case cfg.Server.Datastore.Endpoint != "":
		return errors.New("kedge's configuration has datastore-endpoint, and an adoption puts the objects into kedge's own datastore: " + leave +
			". For several servers, set cluster-init: true instead")
	case cfg.Agent.Server != "":
		return errors.New("kedge's configuration has server, which joins another cluster: " + leave)
	case cfg.Server.APIServerArg(providerArgument) != "":
		return errors.New("kedge's configuration has encryption-provider-config in kube-apiserver-arg, and then kedge could not read the Secrets that it adopts: leave it out. kedge encrypts Secrets with keys of its own")
	case cfg.Server.DisableEtcd:
		return errors.New("kedge's configuration has disable-etcd, and such a server keeps no objects: " + leave)
	}
	return nil
}

// checkEmpty refuses a data directory that has the files of a server.
func checkEmpty(dir datadir.Dir) error {
	folder := dir.Server()
	entries, err := os.ReadDir(folder)
	if errors.Is(err, os.ErrNotExist) || err == nil && len(entries) == 0 {
		return nil
	}
	if err != nil {
		return fmt.Errorf("look for state of kedge: %w", err)
	}
	return fmt.Errorf("kedge has state of its own in %s, which an adoption would replace: move that folder away first, for example to %s.old", folder, folder)
}

// begin makes the folder anew: an earlier call may have been interrupted.
func (a *adoption) begin(context.Context) error {
	a.made = a.dir.Adopting()
	if err := os.RemoveAll(string(a.made)); err != nil {
		return datadir.Explain(err)
	}
	return a.made.MakeServer()
}

func (a *adoption) sync(context.Context) error { return datadir.SyncAll(a.made.Server()) }

func (a *adoption) commit(context.Context) error {
	// An empty folder may be in the place.
	if err := datadir.Replace(a.made.Server(), a.dir.Server(), filepath.Join(string(a.made), "empty")); err != nil {
		return err
	}
	return os.RemoveAll(string(a.made))
}
