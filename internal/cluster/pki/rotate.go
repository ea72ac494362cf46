package pki

import (
	"crypto"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/kedge-dev/kedge/internal/base/datadir"
)

// Replacing the authorities takes two steps. Each is prepared in a folder, and the
// next start puts what is in it into a copy of the folder of certificates, and that
// in the place of this: whenever it is interrupted, there is one or the other.
//
// After the first the new authorities sign, and the old ones, which have signed them
// too, are trusted yet: FILE.crt has the new one as the old one signed it, which
// goes along with each leaf; the old one; and the new one as it signed itself. So
// everybody trusts everybody, whichever of them have followed. After the second the
// old ones are gone.

// replaced are the authorities, by the names of their files. Those of etcd are where
// that is.
var replaced = []string{"server-ca", "client-ca", "request-header-ca", "etcd/server-ca", "etcd/peer-ca"}

// serviceAccountKey is the name of the file. After the first step it has the old
// key's public half too.
const serviceAccountKey = "service.key"

// ErrPrepared says that a step waits for the next start.
var ErrPrepared = errors.New("new authorities are prepared already: restart this server, which takes them into use")

// PrepareAuthorities prepares the first step on a server alone.
func PrepareAuthorities(dir datadir.Dir, now time.Time) error {
	files, err := NextAuthorities(dir, now)
	if err != nil {
		return err
	}
	return prepare(dir, files)
}

// DropAuthorities prepares the second step on a server alone.
func DropAuthorities(dir datadir.Dir) error {
	files, err := LastAuthorities(dir)
	if err != nil {
		return err
	}
	return prepare(dir, files)
}

// NextAuthorities returns what the first step puts into the folder of certificates, by
// the path in there.
func NextAuthorities(dir datadir.Dir, now time.Time) (map[string][]byte, error) {
	files := map[string][]byte{}
	return files, step(dir, func(name string) error { return succeed(dir.ServerTLS(), name, now, files) }, func(key crypto.Signer) error {
		return succeedKey(key, files)
	})
}

// LastAuthorities returns likewise what the second step puts there.
func LastAuthorities(dir datadir.Dir) (map[string][]byte, error) {
	files := map[string][]byte{}
	return files, step(dir, func(name string) error {
		path := filepath.Join(dir.ServerTLS(), name)
		bundle, err := readCertificates(path + ".crt")
		if err != nil {
			return err
		}
		own := successor(bundle)
		switch {
		case own != nil:
		case name == "server-ca":
			return fmt.Errorf("%s.crt has no authority that replaces another: begin with `kedge certificate rotate-ca`", path)
		default:
			return nil // of an etcd that has come since
		}
		files[name+".crt"] = encodeCertificates(own)
		files[name+".key"], err = os.ReadFile(path + ".key")
		return err
	}, func(key crypto.Signer) (err error) {
		files[serviceAccountKey], err = encodeKey(key)
		return err
	})
}

// step calls authority for each that is there, and then account with the key of
// service accounts.
func step(dir datadir.Dir, authority func(name string) error, account func(crypto.Signer) error) error {
	if _, err := os.Stat(dir.NextServerTLS()); err == nil {
		return ErrPrepared
	}
	for _, name := range replaced {
		if _, err := os.Stat(filepath.Join(dir.ServerTLS(), name+".crt")); errors.Is(err, fs.ErrNotExist) && filepath.Dir(name) != "." {
			continue
		}
		if err := authority(name); err != nil {
			return fmt.Errorf("prepare authorities: %w", err)
		}
	}
	key, err := readKey(filepath.Join(dir.ServerTLS(), serviceAccountKey))
	if err == nil {
		err = account(key)
	}
	if err != nil {
		return fmt.Errorf("prepare the key of service accounts: %w", err)
	}
	return nil
}

// prepare keeps files for the next start, in the place of what was kept before.
func prepare(dir datadir.Dir, files map[string][]byte) error {
	err := os.RemoveAll(dir.NextServerTLS())
	if err == nil {
		err = makeFolder(dir.NextServerTLS(), func(to string) error {
			for name, content := range files {
				path := filepath.Join(to, name)
				if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
					return err
				}
				if err := datadir.WriteFile(path, content, keyMode); err != nil {
					return err
				}
			}
			return nil
		})
	}
	if err != nil {
		return fmt.Errorf("prepare authorities: %w", datadir.Explain(err))
	}
	return nil
}

// makeFolder has do fill a folder, which is there when all is in it.
func makeFolder(path string, do func(to string) error) error {
	making := path + ".tmp"
	if err := os.RemoveAll(making); err != nil {
		return err
	}
	err := os.Mkdir(making, 0o700)
	if err == nil {
		err = do(making)
	}
	if err == nil {
		err = datadir.SyncAll(making)
	}
	if err == nil {
		err = os.Rename(making, path)
	}
	if err != nil {
		return errors.Join(err, os.RemoveAll(making))
	}
	return datadir.SyncFolder(filepath.Dir(path))
}

// copyFolder copies files, over what is there, with their modes.
func copyFolder(from, to string) error {
	return filepath.WalkDir(from, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name, err := filepath.Rel(from, path)
		if err != nil {
			return err
		}
		if entry.IsDir() {
			return os.MkdirAll(filepath.Join(to, name), 0o700)
		}
		info, err := os.Stat(path) // of what a link leads to
		if err != nil {
			return err
		}
		content, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		return datadir.WriteFile(filepath.Join(to, name), content, info.Mode().Perm())
	})
}

// succeed makes the files of a new authority in the place of the one of that name.
func succeed(folder, name string, now time.Time, files map[string][]byte) error {
	path := filepath.Join(folder, name)
	bundle, err := readCertificates(path + ".crt")
	if err != nil {
		return err
	}
	key, err := readKey(path + ".key")
	if err != nil {
		return err
	}
	old := bundle[0]
	switch {
	case successor(bundle) != nil:
		return fmt.Errorf("%s.crt replaces another authority already: end that first, by `kedge certificate rotate-ca --finish`", path)
	case len(bundle) > 1 || old.CheckSignatureFrom(old) != nil || old.MaxPathLen == 0 && old.MaxPathLenZero:
		return fmt.Errorf("%s.crt is an authority of your own, below another or such that none may be below it: kedge cannot replace it", path)
	}
	a := &authority{certFile: path + ".crt"}
	if a.key, err = ecdsaKey(); err != nil {
		return fmt.Errorf("make key: %w", err)
	}
	if err := a.make("kedge-"+strings.ReplaceAll(name, "/", "-"), now); err != nil {
		return err
	}
	crossed, err := cross(a.cert(), old, key)
	if err != nil {
		return fmt.Errorf("sign %s by the old authority: %w", a.certFile, err)
	}
	files[name+".crt"] = encodeCertificates(crossed, old, a.cert())
	files[name+".key"], err = encodeKey(a.key)
	return err
}

// cross returns an authority's certificate as another one signs it.
func cross(cert, signer *x509.Certificate, key crypto.Signer) (*x509.Certificate, error) {
	serial, err := serialNumber()
	if err != nil {
		return nil, err
	}
	template := *cert
	template.SerialNumber = serial
	template.AuthorityKeyId = nil // the signer's
	der, err := x509.CreateCertificate(rand.Reader, &template, signer, cert.PublicKey, key)
	if err != nil {
		return nil, err
	}
	return x509.ParseCertificate(der)
}

// successor returns the authority that signs now, as it signed itself, if the bundle
// is from between the two steps.
func successor(bundle []*x509.Certificate) *x509.Certificate {
	if bundle[0].CheckSignatureFrom(bundle[0]) == nil {
		return nil
	}
	for _, cert := range bundle[1:] {
		if cert.CheckSignatureFrom(cert) == nil && string(cert.RawSubjectPublicKeyInfo) == string(bundle[0].RawSubjectPublicKeyInfo) {
			return cert
		}
	}
	return nil
}

// succeedKey makes the file of a new key, with which the old one's tokens are good yet.
func succeedKey(old crypto.Signer, files map[string][]byte) error {
	public, err := x509.MarshalPKIXPublicKey(old.Public())
	if err != nil {
		return fmt.Errorf("encode key: %w", err)
	}
	key, err := rsaKey()
	if err != nil {
		return fmt.Errorf("make key: %w", err)
	}
	text, err := encodeKey(key)
	if err != nil {
		return fmt.Errorf("encode key: %w", err)
	}
	files[serviceAccountKey] = append(text, pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: public})...)
	return nil
}

// TakeAuthorities takes a step that was prepared. It is called before anything else
// reads or writes the certificates.
func TakeAuthorities(dir datadir.Dir, now time.Time) error {
	next, whole := dir.NextServerTLS(), dir.NextServerTLS()+"-whole"
	if _, err := os.Stat(next); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if _, err := os.Stat(whole); errors.Is(err, fs.ErrNotExist) {
		if wanted, err := wants(dir); err != nil {
			return err
		} else if !wanted {
			return os.RemoveAll(next)
		}
		// What was kept before has served its time.
		err := os.RemoveAll(dir.PreviousServerTLS())
		if err == nil {
			err = makeFolder(whole, func(to string) error {
				// All else as it is now, which may be other than when this was prepared.
				err := errors.Join(copyFolder(dir.ServerTLS(), to), copyFolder(next, to))
				for _, name := range replaced {
					_ = os.Remove(filepath.Join(to, name+"-signer.crt")) // made again where it is needed
				}
				// This is when: RotatedAt.
				return errors.Join(err, os.Chtimes(filepath.Join(to, "server-ca.crt"), now, now))
			})
		}
		if err != nil {
			return fmt.Errorf("take new authorities: %w", datadir.Explain(err))
		}
	}
	if err := datadir.Replace(whole, dir.ServerTLS(), dir.PreviousServerTLS()); err != nil {
		return err
	}
	logrus.WithField("component", "pki").Infof("New authorities are in use; those before are kept in %s", dir.PreviousServerTLS())
	return os.RemoveAll(next)
}

// wants tells whether prepared authorities are for those that are here, and have not
// been taken yet.
func wants(dir datadir.Dir) (bool, error) {
	theirs, err := readCertificates(filepath.Join(dir.NextServerTLS(), "server-ca.crt"))
	if err != nil {
		return false, err
	}
	own, err := readCertificates(filepath.Join(dir.ServerTLS(), "server-ca.crt"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return false, err
	}
	if slices.EqualFunc(own, theirs, (*x509.Certificate).Equal) {
		return false, nil
	}
	if !related(own, theirs) {
		logrus.WithField("component", "pki").Warnf("The authorities prepared in %s are not for those that are here now, perhaps from a snapshot: removing them", dir.NextServerTLS())
		return false, nil
	}
	return true, nil
}

// related tells whether one of two bundles replaces the other: all that follow each
// other have a certificate in common.
func related(one, other []*x509.Certificate) bool {
	return slices.ContainsFunc(one, func(cert *x509.Certificate) bool { return slices.ContainsFunc(other, cert.Equal) })
}
