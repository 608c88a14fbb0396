// The functions for parameter servers in the C interface (rdmacoll_c.h).
#pragma once

#include "api/rdmacoll_c.h"

int ps_rule_slots(const char* rule, char** json, char** error);
int ps_update(const rc_update* update, char** error);

int ps_open(rc_engine* engine, int32_t rank, int32_t size, int32_t servers, int64_t staleness,
            const char* job, const uint8_t* secret, int32_t secret_bytes, const char* arguments,
            rc_ps** ps, char** card, char** error);
int ps_node(rc_ps* ps, const char* const* cards, int32_t* leader, char** error);
int ps_start(rc_ps* ps, const int32_t* leaders, int64_t timeout_ms, char** error);
void ps_free(rc_ps* ps);
int ps_serve(rc_ps* ps, int64_t timeout_ms, char** error);
int ps_declare(rc_ps* ps, const rc_variable* variables, int32_t n_variables, const char* rule,
               rc_ps_call** call, char** error);
int ps_move(rc_ps* ps, int32_t move, int32_t n_variables, const int32_t* variables,
            void* const* data, const double* learning_rate, rc_ps_call** call, char** error);
int ps_move_rows(rc_ps* ps, int32_t move, int32_t variable, const int64_t* rows, int64_t n_rows,
                 void* data, const double* learning_rate, rc_ps_call** call, char** error);
int ps_ask(rc_ps* ps, int32_t ask, rc_ps_call** call, char** error);
int ps_wait(rc_ps* ps, const rc_ps_call* call, int64_t timeout_ms, char** texts, char** error);
void ps_call_free(rc_ps_call* call);
char* ps_sharding(rc_ps* ps);
int ps_checkpoint(rc_ps* ps, const char* path, int32_t way, rc_ps_call** call, char** error);
int ps_move_slot(rc_ps* ps, int32_t move, int32_t slot, uint64_t updates, int32_t n_variables,
                 const int32_t* variables, void* const* data, rc_ps_call** call, char** error);
int ps_updates(rc_ps* ps, int32_t n_variables, const int32_t* variables, rc_ps_call** call,
               char** error);
int ps_submit(rc_ps* ps, const rc_ps_request* request, char** error);
void ps_end(rc_ps* ps);
char* ps_stats(rc_ps* ps);
char* ps_losses(rc_ps* ps);
int ps_failure(rc_ps* ps, char** error);
void ps_leave(rc_ps* ps, const char* cause);
int ps_exchange(rc_ps* ps, int32_t n_variables, const int32_t* variables,
                const void* const* gradients, void* const* values, const double* learning_rate,
                rc_ps_call** call, char** error);
