package snapshot

import (
	"context"

	"github.com/kedge-dev/kedge/internal/base/localapi"
)

// request is what a command asks of the server that runs here.
type request struct {
	// Name is what the name of the snapshot to save begins with, or of those to prune:
	// empty for all.
	Name string `json:"name,omitempty"`
	// Retention is how many prune keeps; 0 is the server's own setting.
	Retention int `json:"retention,omitempty"`
	// Names are the files to delete.
	Names []string `json:"names,omitempty"`
}

// answer has the files that were saved, listed or deleted.
type answer struct {
	Files []File `json:"files,omitempty"`
}

// Routes implements localapi.Part, for `kedge snapshot` on a server that runs.
func (s *Snapshots) Routes() []localapi.Route {
	return []localapi.Route{
		localapi.Answer(localapi.ListSnapshots, func(ctx context.Context, _ localapi.Nothing) (answer, error) {
			files, err := s.list(ctx)
			return answer{files}, err
		}),
		localapi.Answer(localapi.SaveSnapshot, func(ctx context.Context, r request) (answer, error) {
			file, err := s.save(ctx, r.Name)
			if file == nil {
				return answer{}, err
			}
			return answer{[]File{*file}}, err
		}),
		localapi.Answer(localapi.DeleteSnapshots, func(ctx context.Context, r request) (answer, error) {
			files, err := s.delete(ctx, r.Names)
			return answer{files}, err
		}),
		localapi.Answer(localapi.PruneSnapshots, func(ctx context.Context, r request) (answer, error) {
			if r.Retention == 0 {
				r.Retention = s.cfg.Settings.Retention
			}
			files, err := s.prune(ctx, r.Name, r.Retention)
			return answer{files}, err
		}),
	}
}

// AskList asks the server of this host for its snapshots. Those that are known are
// returned also if there is an error.
func AskList(ctx context.Context, kedge *localapi.Client) ([]File, error) {
	return ask(ctx, kedge, localapi.ListSnapshots, nil)
}

// AskSave has the server of this host save a snapshot whose name begins with name. It
// returns the file also if only S3 failed.
func AskSave(ctx context.Context, kedge *localapi.Client, name string) ([]File, error) {
	return ask(ctx, kedge, localapi.SaveSnapshot, request{Name: name})
}

// AskDelete has the server of this host delete snapshots by their names. It returns
// those that are gone, also if there is an error.
func AskDelete(ctx context.Context, kedge *localapi.Client, names []string) ([]File, error) {
	return ask(ctx, kedge, localapi.DeleteSnapshots, request{Names: names})
}

// AskPrune has the server of this host delete its older snapshots: those whose name
// begins with name, or all if that is empty, except as many as retention says; 0 is the
// server's setting. It returns those that are gone, also if there is an error.
func AskPrune(ctx context.Context, kedge *localapi.Client, name string, retention int) ([]File, error) {
	return ask(ctx, kedge, localapi.PruneSnapshots, request{Name: name, Retention: retention})
}

func ask(ctx context.Context, kedge *localapi.Client, e localapi.Endpoint, question any) ([]File, error) {
	var a answer
	err := kedge.Ask(ctx, e, question, &a)
	return a.Files, err
}

// List lists the snapshots of a server that does not run.
func List(ctx context.Context, cfg Config) ([]File, error) { return New(cfg).list(ctx) }
