package snapshot

import (
	"context"

	"github.com/kedge-dev/kedge/internal/base/localapi"
)

// request is what a command asks of the server that runs on this host.
type request struct {
	// Name is the beginning of the name: of the snapshot to save, or of those to
	// prune. Prune takes all snapshots if it is empty.
	Name string `json:"name,omitempty"`
	// Retention is how many snapshots prune keeps. 0 stands for the server's own
	// setting.
	Retention int `json:"retention,omitempty"`
	// Names are the files to delete.
	Names []string `json:"names,omitempty"`
}

// answer lists the files that were saved, listed or deleted.
type answer struct {
	Files []File `json:"files,omitempty"`
}

// Routes implements localapi.Part, for `kedge snapshot` on a running server.
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
			files, err := s.prune(ctx, r.Name, r.Retention)
			return answer{files}, err
		}),
	}
}

// AskList asks the server of this host for its snapshots. If there is an error, it
// returns those that are known, too.
func AskList(ctx context.Context, kedge *localapi.Client) ([]File, error) {
	return ask(ctx, kedge, localapi.ListSnapshots, nil)
}

// AskSave asks the server of this host to save a snapshot whose name begins with
// name. If only the copy to S3 failed, it returns both the file and the error.
func AskSave(ctx context.Context, kedge *localapi.Client, name string) ([]File, error) {
	return ask(ctx, kedge, localapi.SaveSnapshot, request{Name: name})
}

// AskDelete asks the server of this host to delete snapshots by their names. It
// returns the deleted ones, also if there is an error.
func AskDelete(ctx context.Context, kedge *localapi.Client, names []string) ([]File, error) {
	return ask(ctx, kedge, localapi.DeleteSnapshots, request{Names: names})
}

// AskPrune asks the server of this host to delete its older snapshots whose names begin
// with name, or of all names if it is empty. The newest ones are kept, as many as
// retention says; 0 stands for the server's setting. It returns the deleted ones, also
// if there is an error.
func AskPrune(ctx context.Context, kedge *localapi.Client, name string, retention int) ([]File, error) {
	return ask(ctx, kedge, localapi.PruneSnapshots, request{Name: name, Retention: retention})
}

func ask(ctx context.Context, kedge *localapi.Client, e localapi.Endpoint, question any) ([]File, error) {
	a, err := localapi.Ask[answer](ctx, kedge, e, question)
	return a.Files, err
}

// List lists the snapshots of a server that does not run.
func List(ctx context.Context, cfg Config) ([]File, error) { return New(cfg).list(ctx) }
